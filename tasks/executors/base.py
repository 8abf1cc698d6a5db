"""What every executor offers."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol, TypeVar

from storage.rounds.commits import Commit
from tasks.evidence.results import RoundResult
from tasks.rounds.job import Job

T = TypeVar("T")


@dataclass(frozen=True)
class ExecutorKind:
    """What an executor does that others do not.

    `distributed`: it needs a Dask cluster. `orders_arrivals`: updates arrive at a parameter server in a given
    order, and not as they come. `separate_ranks`: the ranks of a network may be processes of their own.
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
    """Runs the rounds of a plan somewhere; which one does changes no bits."""

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """What a function gives in each process where maps run, all at once, in the order of their blocks."""
        ...

    def gather(self, function: Callable[[int], T], partitions: range) -> list[T]:
        """What a function gives for each partition, called where maps run."""
        ...

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run a window of rounds, giving each commit as it is made; ends early where a commit says stop."""
        ...

    def end(self) -> None:
        """Let go of what goes on between windows: when it returns, no round is worked on any more."""
        ...

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds as one window, giving the result of each in this order; nothing is written."""
        ...
