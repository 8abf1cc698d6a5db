"""The commit record: what makes a round exist. It is created last, exclusively, and never changed."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.errors import RoundMissing, StoreDamaged, WriterFenced
from storage.parsing import from_json
from storage.places.base import Place
from storage.values.digests import text_digest


@dataclass(frozen=True)
class UpdateRecord:
    """What the commit says of one partition's update; `refused` is the reason, None where it was accepted.

    `match` is the digest of how its units were matched, where they were.
    """

    digest: str
    weight: int
    refused: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    worker: str = ""
    match: str | None = None


@dataclass(frozen=True)
class Score:
    """The mean loss on the held-out examples, and further scores by name, such as ``accuracy``.

    `examples` counts those that were scored: partitions with a loss that is no number are left out.
    """

    loss: float
    values: Mapping[str, float] = field(default_factory=dict)
    examples: int = 0

    @property
    def accuracy(self) -> float | None:
        """The share of right classes; None where outputs are no classes."""
        return self.values.get("accuracy")

    def row(self) -> dict[str, float]:
        """All its numbers by name, side by side."""
        return {"loss": self.loss, **self.values, "examples": self.examples}


@dataclass(frozen=True)
class Commit:
    """One committed round.

    `token` and `epoch` are the writer's (see `Lease`); `state` and `tensors` are digests; `updates` is keyed by
    partition; `carry_from` tells from which round each partition's carry comes; `best` is the lowest loss so far
    and `since_best` the scores since; `stop` is the reason to end the run here; `time` is seconds since the epoch.
    """

    round: int
    token: str
    epoch: int
    state: str
    tensors: Mapping[str, str]
    updates: Mapping[int, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[int, int] = field(default_factory=dict)
    score: Score | None = None
    best: float | None = None
    since_best: int = 0
    stop: str | None = None
    seconds: float = 0.0
    time: float = 0.0

    @property
    def accepted(self) -> list[int]:
        """The partitions whose updates were taken, in order."""
        return [partition for partition, update in self.updates.items() if update.refused is None]

    def identity(self) -> tuple[Any, ...]:
        """What two commits of the same work share: all but the writer, times and places."""
        updates = [(p, u.digest, u.weight, u.refused, u.match) for p, u in self.updates.items()]
        return self.round, self.state, dict(self.tensors), updates, dict(self.carry_from)

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """The inverse of `to_json`."""
        value = from_json(text)
        updates = {int(p): UpdateRecord(**u) for p, u in value.pop("updates").items()}
        carry_from = {int(p): r for p, r in value.pop("carry_from").items()}
        score = value.pop("score")
        return cls(**value, updates=updates, carry_from=carry_from, score=Score(**score) if score else None)


SEALED = re.compile(r'(\{.*), "before": "([0-9a-f]*)", "chain": "([0-9a-f]{64})"\}', re.DOTALL)
"""A record as it is stored: its last members are the chain of the record before it, and its own."""


@dataclass(frozen=True)
class Link:
    """A sealed record: its text, the chain of the record before it, and its own."""

    text: str
    before: str
    chain: str


class CommitLog:
    """The commit records of the run at a place, one JSON content a round.

    Each is sealed by its chain: the digest of `run`, its round, the chain of the record before and what it says.
    What is read is verified, and one line vouches for all that was before. `run` is the digest of the attributes.
    """

    def __init__(self, place: Place, run: str) -> None:
        self.place = place
        self.run = run

    def rounds(self) -> list[int]:
        """The rounds of which there is a record, whole or not, ascending."""
        stems = [name.removesuffix(".json") for name in self.place.names("commits") if name.endswith(".json")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def has(self, round: int) -> bool:
        """Whether there is a record of a round."""
        return self.place.has(_key(round))

    def read(self, round: int) -> Commit:
        """The record of a round; raises `RoundMissing`, or `StoreDamaged` for one that was not written so."""
        text = self._link(round).text
        try:
            return Commit.from_json(text)
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreDamaged(f"{self.place}/{_key(round)} is no commit record: {error}") from error

    def check(self) -> None:
        """Raise `StoreDamaged` where no record is of the run's attributes, which each chain covers."""
        if self.newest() is None and self.rounds():
            raise StoreDamaged(
                f"{self.place}: no commit record is one of a run with the attributes in zarr.json; "
                "one or the other was changed, restore it from a copy"
            )

    def missing(self, round: int, rounds: Sequence[int]) -> RoundMissing:
        """What to raise for a round that is not among the committed ones."""
        if not rounds:
            there = "it has none"
        elif rounds[0] < round < rounds[-1]:
            there = f"{_key(round)} is missing, and the round is lost"
        else:
            there = f"it has rounds {rounds[0]} to {rounds[-1]}"
        return RoundMissing(f"no committed round {round} in {self.place}; {there}")

    def newest(self) -> int | None:
        """The last round with a whole record; None where there is none."""
        return next((round for round in reversed(self.rounds()) if self._whole_link(round)), None)

    def whole(self, rounds: Sequence[int]) -> list[int]:
        """Those of the rounds, which ascend, whose records are whole and are those that the next ones follow."""
        whole: list[int] = []
        after: Link | None = None
        for round in reversed(rounds):
            link = self._whole_link(round)
            if link and after and whole[-1] == round + 1 and after.before != link.chain:
                link = None
            if link:
                whole.append(round)
            after = link
        return whole[::-1]

    def create(self, commit: Commit, fsync: bool = False) -> Commit:
        """Write a record that must not exist yet; an equal one of this or an earlier writer is taken instead.

        A worker may die after its commit and before it said so, and its task then runs again; or a killed run's
        last task still commits while the run is resumed. Other bits, or a later writer, raise `WriterFenced`.
        """
        text, before = commit.to_json(), self._chain_before(commit.round)
        content = f'{text[:-1]}, "before": "{before}", "chain": "{self._chain(commit.round, before, text)}"}}'
        if self.place.create(_key(commit.round), content.encode(), durable=fsync):
            return commit
        kept = self.read(commit.round)
        if kept.epoch > commit.epoch or kept.identity() != commit.identity():
            raise WriterFenced(
                f"round {commit.round} of {self.place} was committed by another writer ({kept.token}); "
                "this one stops"
            )
        return kept

    def set_aside(self, after: int) -> list[int]:
        """Take the records of later rounds, and those that are not whole, out of the log; which rounds they were.

        They are kept as evidence.
        """
        rounds = self.rounds()
        whole = set(self.whole(rounds))
        aside = [round for round in rounds if round > after or round not in whole]
        for round in aside:
            content = self.place.read(_key(round))
            assert content is not None, "only the holder of the lease sets records aside"
            self.place.write(f"commits/damaged-{round}-{secrets.token_hex(4)}.json", content)
            self.place.delete(_key(round))
        return aside

    def damaged(self) -> list[int]:
        """The rounds whose records were set aside."""
        names = self.place.names("commits")
        return sorted({int(name.split("-")[1]) for name in names if name.startswith("damaged-")})

    def chain(self, round: int) -> str:
        """The chain of the record of a round, which vouches for it and all before; raises as `read` does."""
        return self._link(round).chain

    def _link(self, round: int) -> Link:
        """The sealed record of a round, verified."""
        content = self.place.read(_key(round))
        if content is None:
            raise self.missing(round, self.rounds())
        parts = SEALED.fullmatch(str(content, "utf-8", "replace"))
        link = parts and Link(parts[1] + "}", parts[2], parts[3])
        if not link or self._chain(round, link.before, link.text) != link.chain:
            raise StoreDamaged(
                f"{self.place}/{_key(round)} is no commit record, or not the one that was written for this round "
                "of this run; restore it from a copy, or `roundweave resume` goes on without it"
            )
        return link

    def _whole_link(self, round: int) -> Link | None:
        try:
            return self._link(round)
        except (RoundMissing, StoreDamaged):
            return None

    def _chain(self, round: int, before: str, text: str) -> str:
        return text_digest("\n".join((self.run, str(round), before, text)))

    def _chain_before(self, round: int) -> str:
        """The chain of the record before that of a round; empty for the first."""
        if self.has(round - 1):
            return self._link(round - 1).chain
        earlier = [number for number in self.rounds() if number < round]
        return self._link(earlier[-1]).chain if earlier else ""


def _key(round: int) -> str:
    return f"commits/{round}.json"
