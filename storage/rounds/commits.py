"""The commit record: what makes a round exist. It is created last, exclusively, and never changed.

The numbers that it tells go by the paths of the arrays that have a copy of them.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any

from pydantic import Field, TypeAdapter

from storage.errors import UsageError
from storage.hierarchy.documents import NAME
from storage.parsing import EXACTLY, Count, Partition, Round, Time, validated


@dataclass(frozen=True)
class Arrival:
    """How an update came to a parameter server: which `push` of its partition it is, counted from 1.

    It was mapped from the state of row `version`. `staleness` counts the rounds since then that took an update.
    """

    push: Count
    version: Round
    staleness: Round


RAISED = "its map failed with "
"""So begins why a partition is refused whose map raised; what it raised may be worded otherwise the next time."""


@dataclass(frozen=True)
class UpdateRecord:
    """What the commit says of one partition's update; `refused` is the reason, None where it was accepted.

    `match` is the digest of how its units were matched, where they were.
    """

    digest: str
    weight: Count
    refused: str | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    seconds: float = 0.0
    worker: str = ""
    match: str | None = None
    arrival: Arrival | None = None

    @property
    def raised(self) -> bool:
        """Whether there is no update, as the map raised."""
        return self.refused is not None and self.refused.startswith(RAISED)

    @property
    def result(self) -> str | None:
        """What is compared of `refused`: all of it, but not the words of an exception."""
        return RAISED if self.raised else self.refused


@dataclass(frozen=True)
class Score:
    """The mean loss on the held-out examples, and further scores by name, such as ``accuracy``.

    `examples` counts those that were scored: partitions with a loss that is no number are left out.
    """

    loss: float
    values: Mapping[str, float] = field(default_factory=dict)
    examples: Count = 0

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

    number: Round
    examples: Count
    digest: str


@dataclass(frozen=True)
class InFlight:
    """The work of a partition that it has not pushed yet.

    `push` is the number of the push, from 1. `version` is the row whose state the partition fetched, and `steps`
    the number of rounds up to that row that took an update.
    """

    push: Count = 1
    version: Round = 0
    steps: Count = 0


@dataclass(frozen=True)
class ServerRecord:
    """Where a parameter server stands after a round: what is `in_flight` of each partition then.

    `steps` counts the rounds so far that took an update; `unsound` are the partitions whose last update was
    refused for what it was.
    """

    in_flight: Mapping[Partition, InFlight]
    steps: Count = 0
    unsound: tuple[Partition, ...] = ()


@dataclass(frozen=True)
class ProcessGroupRecord:
    """What a process group took for a round: so many `ranks`, of which `team` share one network.

    `exchanged` are the bytes that ranks had for each other by kind: ``activations`` within a team, ``updates``
    between those that map other partitions, ``tensors`` on their way to the store. `memory` is the most that each
    rank's process has held so far, in bytes.
    """

    ranks: Count
    team: Count
    exchanged: Mapping[str, Count]
    memory: Annotated[tuple[Count, ...], Field(min_length=1)]


@dataclass(frozen=True)
class Commit:
    """One committed round.

    `token` and `epoch` are the writer's (see `Lease`); `state` and `tensors` are digests; `updates` is keyed by
    partition; `carry_from` tells from which round each partition's carry comes; `best` is the lowest loss so far
    and `since_best` the scores since; `stop` is the reason to end the run here; `time` is seconds since the epoch.
    `split` is None where nothing was dealt out, as each partition's examples were given. `server` is None where
    the round waited for all partitions. Where the state's tensors were not `stored` they can be made again from
    the updates since the last that are. `executor` is what ran the round, empty for the
    initial state and for what a run was given, and `process_group` what it took where ranks ran it.
    """

    __pydantic_config__ = EXACTLY

    round: Round
    token: str
    epoch: Count
    state: str
    tensors: Mapping[str, str]
    updates: Mapping[Partition, UpdateRecord] = field(default_factory=dict)
    carry_from: Mapping[Partition, Round] = field(default_factory=dict)
    split: SplitRecord | None = None
    server: ServerRecord | None = None
    score: Score | None = None
    best: float | None = None
    since_best: Count = 0
    stop: str | None = None
    stored: bool = True
    seconds: float = 0.0
    time: Time = 0.0
    executor: str = ""
    process_group: ProcessGroupRecord | None = None

    @property
    def accepted(self) -> list[int]:
        """The partitions whose updates were taken, in order."""
        return [partition for partition, update in self.updates.items() if update.refused is None]

    @property
    def begins(self) -> frozenset[int]:
        """The rounds whose states going on begins from: this one, and what partitions have in item."""
        in_flight = self.server.in_flight.values() if self.server else ()
        return frozenset({self.round, *(item.version for item in in_flight)})

    @property
    def needed(self) -> int:
        """The oldest of them."""
        return min(self.begins)

    def identity(self) -> tuple[Any, ...]:
        """What two commits of the same work share: all but the writer, times and places, and what is stored."""
        updates = [(p, u.digest, u.weight, u.result, u.match, u.arrival) for p, u in self.updates.items()]
        carried = dict(self.carry_from)
        return self.round, self.state, dict(self.tensors), updates, carried, self.split, self.server

    def to_json(self) -> str:
        """One JSON object."""
        return json.dumps(vars(self), default=vars)

    @classmethod
    def from_json(cls, text: str) -> Commit:
        """The inverse of `to_json`; raises `ValueError` for what no record says."""
        return validated(RECORD, text)


RECORD = TypeAdapter(Commit)


METRIC = re.compile(r"[A-Za-z0-9_@ -][A-Za-z0-9_.@ -]*")


TAKEN = ("round", "partition", "committed", NAME)
"""Names that mean something else to those who read the hierarchy."""


def metric_problem(name: object) -> str | None:
    """Why a metric or score cannot be called so, as its name is part of a path; None where it can."""
    if not isinstance(name, str):
        return f"a metric's name is text, not {type(name).__name__}"
    if name in TAKEN:
        return f"{name!r} is taken; give the metric another name"
    if len(name) > 100 or not METRIC.fullmatch(name):
        return f"{name[:120]!r} is no metric's name: 1 to 100 of A-Z a-z 0-9 _ - . @ and space, no leading dot"
    return None


def check_names(commit: Commit) -> None:
    """Raise `UsageError` for a metric or a score that cannot be kept under its name."""
    metrics = [name for update in commit.updates.values() for name in update.metrics]
    scores = list(commit.score.values) if commit.score else []
    if "loss" in scores:
        raise UsageError("a score cannot be called 'loss', which is the mean loss; give it another name")
    for name in dict.fromkeys([*metrics, *scores]):
        if problem := metric_problem(name):
            raise UsageError(problem)


def numbers_of(commit: Commit) -> dict[str, float | dict[int, float]]:
    """What a commit says by the path of its array: a number, or one of each partition that tells of one."""
    numbers: dict[str, float] = {"bookkeeping/seconds": commit.seconds}
    if commit.score is not None:
        numbers |= {"scores/loss": commit.score.loss}
        numbers |= {f"scores/{name}": value for name, value in commit.score.values.items()}
    of_partitions: dict[str, dict[int, float]] = {}
    for partition, update in commit.updates.items():
        told = {"weight": update.weight, "accepted": update.refused is None, "map_seconds": update.seconds}
        paths = {f"bookkeeping/{name}": value for name, value in told.items()}
        paths |= {f"metrics/{name}": value for name, value in update.metrics.items()}
        for path, value in paths.items():
            of_partitions.setdefault(path, {})[partition] = value
    return {**numbers, **of_partitions}
