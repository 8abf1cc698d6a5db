"""The commit record: what makes a round exist. It is created last, exclusively, and never changed."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from storage.parsing import from_json


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
class SplitRecord:
    """Which split a round's examples were dealt by: its number, how many examples it deals, and its digest."""

    number: int
    examples: int
    digest: str


@dataclass(frozen=True)
class Commit:
    """One committed round.

    `token` and `epoch` are the writer's (see `Lease`); `state` and `tensors` are digests; `updates` is keyed by
    partition; `carry_from` tells from which round each partition's carry comes; `best` is the lowest loss so far
    and `since_best` the scores since; `stop` is the reason to end the run here; `time` is seconds since the epoch.
    `split` is None where nothing was dealt out, as each partition's examples were given.
    """

    round: int
    token: str
    epoch: int
    state: str
    tensors: Mapping[str, str]
    updates: Mapping[int, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[int, int] = field(default_factory=dict)
    split: SplitRecord | None = None
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
        return self.round, self.state, dict(self.tensors), updates, dict(self.carry_from), self.split

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """The inverse of `to_json`."""
        value = from_json(text)
        updates = {int(p): UpdateRecord(**u) for p, u in value.pop("updates").items()}
        carry_from = {int(p): r for p, r in value.pop("carry_from").items()}
        split, score = value.pop("split"), value.pop("score")
        return cls(
            **value,
            updates=updates,
            carry_from=carry_from,
            split=SplitRecord(**split) if split else None,
            score=Score(**score) if score else None,
        )
