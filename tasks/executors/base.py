"""The executors by name, how to open one, and the functions that every executor has."""

from __future__ import annotations

import math
import multiprocessing
import sys
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, Self, TypeVar

from roundweave.tasks.data.splits.placement import ANYWHERE, Placement
from roundweave.tasks.own_code.tables import Entry

if TYPE_CHECKING:
    from roundweave.storage.rounds.commits import Commit
    from roundweave.tasks.rounds.evidence.results import RoundResult
    from roundweave.tasks.rounds.job import Job


P = ParamSpec("P")
T = TypeVar("T")


def shared(context: Callable[P, AbstractContextManager[T]]) -> Callable[P, AbstractContextManager[T]]:
    """Yield a decorator: threads that are in this context at once share it.

    The first thread enters the context, with its own arguments, and the last one to leave exits it.
    """
    lock, stack = threading.Lock(), ExitStack()
    within: list[T] = []

    @contextmanager
    def entered(*args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        with lock:
            within.append(within[0] if within else stack.enter_context(context(*args, **kwargs)))
        try:
            yield within[0]
        finally:
            with lock:
                within.pop()
                if not within:
                    stack.__exit__(*sys.exc_info())

    return entered


@dataclass(frozen=True)
class ExecutorEntry(Entry):
    """A line of the table of executors.

    `distributed` means that it needs a Dask cluster, where pushes arrive at a parameter server when workers are
    ready. Without, they arrive in a given order. `separate_ranks` means that each rank of a network may be a
    process of its own.
    """

    distributed: bool = True
    separate_ranks: bool = False


EXECUTORS: Mapping[str, ExecutorEntry] = {
    "graph": ExecutorEntry("tasks on a Dask cluster", ".executors.graph:GraphExecutor"),
    "ranks": ExecutorEntry("a group of processes", ".executors.ranks:RanksExecutor", separate_ranks=True),
    "auto": ExecutorEntry("the faster of both", ".executors.ranks:AutoExecutor", separate_ranks=True),
    "inline": ExecutorEntry("a loop in this process", ".executors.inline:InlineExecutor", distributed=False),
}


@dataclass(frozen=True)
class Setting:
    """The settings with which an executor is opened.

    `scheduler`, `certificates`, `workers` and `private` are as in `clusters.connecting.connect`, which waits up to
    `wait_for_workers` seconds for a first worker. The user is notified of each map that takes more than
    `worker_timeout` seconds and much longer than the others. The user is also notified of each worker that is
    given up because it sent no heartbeat for so long. With `plain_ranks` the ranks may exchange unencrypted data
    on a cluster whose Dask is encrypted. With ``auto``, the first rounds are expected to take `round_seconds`.
    `store` is the address of the runs' folder, or of a run that is only read. Workers that do not reach it hand on
    what is to be stored; if it is empty, all do. `placement` says where the examples of partitions stay.
    """

    scheduler: str | None = None
    workers: int = 2
    worker_timeout: float = 60.0
    private: bool = False
    wait_for_workers: float = 600.0
    plain_ranks: bool = False
    round_seconds: float = math.inf
    store: str = ""
    placement: Placement = ANYWHERE
    certificates: Path | None = None


DEFAULTS = Setting()


class Executor(Protocol):
    """Runs the rounds of a job. Every executor gives the same bits."""

    @classmethod
    def opened(cls, setting: Setting) -> AbstractContextManager[Self]:
        """Return a context with an executor, in which the cluster that it needs is there."""
        ...

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """Call a function in each process where maps run, all at once.

        Return results by process, in block order.
        """
        ...

    def gather(self, function: Callable[[int], T], numbers: Iterable[int], stored: bool = False) -> list[T]:
        """Call a function with each partition's number where it is mapped. Return results in order of the numbers.

        If `stored`, numbers are of anything else, and the function is called where the store is reached.
        """
        ...

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run the rounds from `first` to `last`, and yield each commit as it is made.

        Ends early after a commit that says to stop.
        """
        ...

    def end(self) -> None:
        """Stop what goes on between windows of rounds. After this call, no process works on a round any more."""
        ...

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds, and yield the result of each in the given order. Nothing is written."""
        ...


@contextmanager
def open_executor(name: str, **setting: Any) -> Iterator[Executor]:
    """Open an executor of the table with the fields of a `Setting`. Dask is imported only if it is needed."""
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)  # a worker imports a script that trains on import; the worker's starter reports why
    with EXECUTORS[name].load().opened(Setting(**setting)) as executor:
        yield executor
