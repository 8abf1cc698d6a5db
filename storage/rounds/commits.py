"""The commit record: what makes a round exist. It is created last, exclusively, and never changed."""

from __future__ import annotations

import json
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.errors import RoundMissing, StoreDamaged, WriterFenced
from storage.parsing import from_json
from storage.places.base import Place


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
        return json.dumps(asdict(self), indent=1)

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """The inverse of `to_json`."""
        value = from_json(text)
        updates = {int(p): UpdateRecord(**u) for p, u in value.pop("updates").items()}
        carry_from = {int(p): r for p, r in value.pop("carry_from").items()}
        score = value.pop("score")
        return cls(**value, updates=updates, carry_from=carry_from, score=Score(**score) if score else None)


class CommitLog:
    """The commit records of the run at a place, one JSON content a round."""

    def __init__(self, place: Place) -> None:
        self.place = place

    def rounds(self) -> list[int]:
        """The committed rounds, ascending."""
        stems = [name.removesuffix(".json") for name in self.place.names("commits") if name.endswith(".json")]
        return sorted(int(stem) for stem in stems if stem.isdecimal())

    def has(self, round: int) -> bool:
        """Whether a round is committed."""
        return self.place.has(_key(round))

    def read(self, round: int) -> Commit:
        """The record of a round; raises `RoundMissing`, or `StoreDamaged` for a content that is no record."""
        content = self.place.read(_key(round))
        if content is None:
            raise self.missing(round, self.rounds())
        try:
            return Commit.from_json(str(content, "utf-8"))
        except (ValueError, TypeError, KeyError, AttributeError) as error:
            raise StoreDamaged(f"{self.place}/{_key(round)} is no commit record: {error}") from error

    def missing(self, round: int, rounds: Sequence[int]) -> RoundMissing:
        """What to raise for a round that is not among the committed ones."""
        there = f"it has rounds {rounds[0]} to {rounds[-1]}" if rounds else "it has none"
        return RoundMissing(f"no committed round {round} in {self.place}; {there}")

    def create(self, commit: Commit, fsync: bool = False) -> Commit:
        """Write a record that must not exist yet; an equal one of this or an earlier writer is taken instead.

        A worker may die after its commit and before it said so, and its task then runs again; or a killed run's
        last task still commits while the run is resumed. Other bits, or a later writer, raise `WriterFenced`.
        """
        self.place.create(_key(commit.round), commit.to_json().encode(), durable=fsync)
        kept = self.read(commit.round)
        if kept.epoch > commit.epoch or kept.identity() != commit.identity():
            raise WriterFenced(
                f"round {commit.round} of {self.place} was committed by another writer ({kept.token}); "
                "this one stops"
            )
        return kept

    def set_aside(self, after: int) -> list[int]:
        """Take the records of later rounds out of the log, keeping them as evidence; which rounds they were."""
        later = [round for round in self.rounds() if round > after]
        for round in later:
            content = self.place.read(_key(round))
            assert content is not None, "only the holder of the lease sets records aside"
            self.place.write(f"commits/damaged-{round}-{secrets.token_hex(4)}.json", content)
            self.place.delete(_key(round))
        return later

    def damaged(self) -> list[int]:
        """The rounds whose records were set aside."""
        names = self.place.names("commits")
        return sorted({int(name.split("-")[1]) for name in names if name.startswith("damaged-")})

    @property
    def failure(self) -> str | None:
        """Why the run failed, None where it did not."""
        content = self.place.read(FAILURE)
        return None if content is None else str(content, "utf-8")

    @failure.setter
    def failure(self, reason: str | None) -> None:
        if reason is None:
            self.place.delete(FAILURE)
        else:
            self.place.write(FAILURE, reason.encode())


FAILURE = "commits/failure.txt"


def _key(round: int) -> str:
    return f"commits/{round}.json"
