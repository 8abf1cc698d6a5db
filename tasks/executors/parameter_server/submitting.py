"""What the client of a parameter server submits to Dask: maps, versions to fetch, closed rounds, their tasks."""

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
"""Dask's priority by the kind of task: the tasks that others wait for go first."""

Result = Any
"""A future, or the key of a task that is not submitted yet."""


@dataclass(frozen=True)
class Base:
    """A version of the state that partitions may fetch: its round, and the result that has its outcome."""

    version: int
    outcome: Result


@dataclass(frozen=True)
class Turn:
    """One push of a partition that is in flight or has arrived: its number, and the version that it began from.

    `pushed` is the result of the task that maps it. The task may map several partitions, and gives a list; `place`
    is the index of this push in it.
    """

    number: int
    base: Base
    pushed: Result
    place: int = 0


@dataclass(frozen=True)
class Begin:
    """A map that is to begin: its partition, the number of its push, and the version that it begins from.

    `before` says where to find what the partition carries: ``[result, place]`` of its last push, or the round in
    which that was stored, or None if there is none.
    """

    partition: int
    number: int
    base: Base
    before: Any

    @property
    def due(self) -> list[Any]:
        """The arguments of this map on the worker (see `tasks.persistence.pushes.Due`).

        They are lists, because Dask replaces keys by results in lists and not within our own classes.
        """
        return [self.partition, InFlight(self.number, self.base.version), self.base.outcome, self.before]


SHORT = 0.02
"""Maps that take fewer seconds are short: those of one worker become one task, as a task costs some milliseconds.

For 10 partitions of the digits on 2 workers this gives about 1.7 times as many updates a second (2 busy cores).
"""


def next_turn(partition: int, done: Turn, when: Asynchronous, head: Base, carries: bool) -> Begin:
    """The map of a partition after the push that is `done`.

    If it is time to fetch, it begins from `head`, the server's newest state, else from the version as before.
    `carries` says whether the algorithm's maps carry anything from one to the next.
    """
    number = done.number + 1
    before = [done.pushed, done.place] if carries else None
    return Begin(partition, number, head if when.fetches(number) else done.base, before)


def is_short(seconds: Mapping[int, float], partition: int) -> bool:
    """Whether the maps of a partition are known to be short; `seconds` are those of the last one, by partition."""
    return seconds.get(partition, SHORT) < SHORT


def grouped(
    begins: Sequence[Begin], blocks: Mapping[int, int], seconds: Mapping[int, float]
) -> Iterator[list[Begin]]:
    """Yield the maps that go into one task: all short ones of a block together, and each other one alone.

    `blocks` has the block of each partition. `seconds` are those of the last map, where it is known.
    """
    together: dict[int, list[Begin]] = {}
    for begin in begins:
        if is_short(seconds, begin.partition):
            together.setdefault(blocks[begin.partition], []).append(begin)
        else:
            yield [begin]
    yield from together.values()


@dataclass(frozen=True)
class Closed:
    """A round that is closed: what the server does in it, and the pushes that it applies, by partition."""

    taken_in: ServerRound
    turns: Mapping[int, Turn]

    @property
    def pushed(self) -> list[Result]:
        """The pushes as tasks are given them: ``[result, place]`` for each, in the order of the partitions."""
        pushes = map(self.turns.__getitem__, self.taken_in.partitions)
        return [[push.pushed, push.place] for push in pushes]


def fetching_last(closed: Sequence[Closed], begin: Iterable[int]) -> list[Closed]:
    """Add the partitions in `begin`, which begin now, to those that fetch the state of the last closed round."""
    if not closed:
        return []
    taken_in = closed[-1].taken_in
    return [*closed[:-1], replace(closed[-1], taken_in=replace(taken_in, fetching=taken_in.fetching.union(begin)))]


@dataclass(frozen=True)
class Taken:
    """A round that is closed and not committed yet: its pushes, and the results that have its scores, if any."""

    round: int
    taken_in: ServerRound
    pushed: list[Result]
    scores: list[Result]


@dataclass
class Tasks:
    """Tasks that are submitted together: a Dask graph, and the workers on which some of them had better run."""

    graph: dict[Key, Any] = field(default_factory=dict)
    places: dict[Key, str] = field(default_factory=dict)

    def add(self, key: Key, worker: str | None, *task: Any) -> Key:
        """Add a task, which runs on `worker` if it can, and return its key."""
        self.graph[key] = task
        if worker is not None:
            self.places[key] = worker
        return key

    def submit(self, client: Client) -> dict[Key, Future[Any]]:
        """Submit all tasks, and return the future of each by its key."""
        keys, places = list(self.graph), self.places
        with annotate(
            workers=lambda key: [places[key]] if key in places else [],
            allow_other_workers=True,
            priority=lambda key: PRIORITY[key[0]],
        ):
            return dict(zip(keys, client.get(self.graph, keys, sync=False), strict=True))
