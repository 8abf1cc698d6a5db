"""The executors by name, and the functions that every executor has."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.rounds.evidence.results import RoundResult
from roundweave.tasks.rounds.job import Job

T = TypeVar("T")


@dataclass(frozen=True)
class ExecutorKind:
    """In what executors differ.

    `distributed`: it needs a Dask cluster. `orders_arrivals`: pushes arrive at a parameter server in an order
    that is given, rather than when workers are ready. `separate_ranks`: each rank of a network may be a process of
    its own.
    """

    distributed: bool = True
    orders_arrivals: bool = False
    separate_ranks: bool = False


EXECUTORS = {
    "inline": ExecutorKind(distributed=False, orders_arrivals=True),
    "graph": ExecutorKind(),
    "ranks": ExecutorKind(separate_ranks=True),
    "auto": ExecutorKind(separate_ranks=True),
}


class Executor(Protocol):
    """Runs the rounds of a job. Every executor gives the same bits."""

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """Call a function in each process where maps run, all at once; the results by process, in block order."""
        ...

    def gather(self, function: Callable[[int], T], partitions: range) -> list[T]:
        """Call a function with each partition's number where maps run; the results in order of partitions."""
        ...

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run the rounds from `first` to `last`, and yield each commit as it is made.

        Ends early after a commit that says to stop.
        """
        ...

    def end(self) -> None:
        """Stop what goes on between windows of rounds. When it returns, no process works on a round any more."""
        ...

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds, and yield the result of each in the given order. Nothing is written."""
        ...
