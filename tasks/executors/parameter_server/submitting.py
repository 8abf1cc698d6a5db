"""What a server's client submits: turns, rows to fetch, rounds taken in, and the tasks that make them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from dask import annotate  # type: ignore[attr-defined]
from distributed import Client, Future

from storage.rounds.commits import InFlight
from tasks.executors.pool import Key
from tasks.when import Asynchronous, ServerRound

PRIORITY = {"read": 3, "serve": 3, "commit": 1, "score": 0, "turn": 0, "turns": 0}
"""What others wait for overtakes."""

Result = Any
"""A future, or the key of a task of the graph that is being made."""


@dataclass(frozen=True)
class Base:
    """A row that can be fetched, and its outcome."""

    version: int
    outcome: Result


@dataclass(frozen=True)
class Turn:
    """A partition's turn: what it began from, and what it pushes.

    What several partitions push together is one result, in which each has its `place`.
    """

    number: int
    base: Base
    pushed: Result
    place: int = 0


@dataclass(frozen=True)
class Begin:
    """A turn that is to begin: whose, its number, from what, and what has what the partition carries."""

    partition: int
    number: int
    base: Base
    before: Any

    @property
    def due(self) -> list[Any]:
        """The same as the worker is told, where results are to be found in lists."""
        return [self.partition, InFlight(self.number, self.base.version), self.base.outcome, self.before]


SHORT = 0.02
"""Seconds of a turn below which those of one worker are taken in one task, as a task costs some milliseconds.

Of 10 partitions on 2 workers, digits, about 1.7 times as many updates a second come from it (2 cores, busy).
"""


def next_turn(partition: int, done: Turn, when: Asynchronous, head: Base, carries: bool) -> Begin:
    """The turn of a partition after one that has landed, from the server's last state where it fetches."""
    number = done.number + 1
    before = [done.pushed, done.place] if carries else None
    return Begin(partition, number, head if when.fetches(number) else done.base, before)


def is_short(seconds: Mapping[int, float], partition: int) -> bool:
    """Whether a partition's turns are known to be short."""
    return seconds.get(partition, SHORT) < SHORT


def grouped(
    begins: Sequence[Begin], blocks: Mapping[int, int], seconds: Mapping[int, float]
) -> Iterator[list[Begin]]:
    """Turns that are taken in one task: the short ones of a block; `seconds` tells of those that are known."""
    together: dict[int, list[Begin]] = {}
    for begin in begins:
        if is_short(seconds, begin.partition):
            together.setdefault(blocks[begin.partition], []).append(begin)
        else:
            yield [begin]
    yield from together.values()


@dataclass(frozen=True)
class Closed:
    """A round that has closed: what it takes in, and the turns, by partition, whose updates landed."""

    taken_in: ServerRound
    turns: Mapping[int, Turn]

    @property
    def pushed(self) -> list[Result]:
        """The updates."""
        turns = map(self.turns.__getitem__, self.taken_in.partitions)
        return [[turn.pushed, turn.place] for turn in turns]


def fetching_last(closed: Sequence[Closed], begin: Iterable[int]) -> list[Closed]:
    """Rounds that are taken in at once, where partitions that begin now fetch the state after the last."""
    if not closed:
        return []
    taken_in = closed[-1].taken_in
    return [*closed[:-1], replace(closed[-1], taken_in=replace(taken_in, fetching=taken_in.fetching.union(begin)))]


@dataclass(frozen=True)
class Taken:
    """A round that was taken in and is not committed yet: its updates, and its scores, where it has any."""

    round: int
    taken_in: ServerRound
    pushed: list[Result]
    scores: list[Result]


@dataclass
class Tasks:
    """Tasks that are submitted together: what they do, and the workers that some prefer."""

    graph: dict[Key, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)

    def add(self, key: Key, worker: str | None, *task: Any) -> Key:
        """Add a task; its key."""
        self.graph[key] = task
        if worker is not None:
            self.places[key] = worker
        return key

    def submit(self, client: Client) -> dict[Key, Future[Any]]:
        """Have them done; the future of each."""
        keys, places = list(self.graph), self.places
        with annotate(
            workers=lambda key: [places[key]] if key in places else [],
            allow_other_workers=True,
            priority=lambda key: PRIORITY[key[0]],
        ):
            return dict(zip(keys, client.get(self.graph, keys, sync=False), strict=True))
