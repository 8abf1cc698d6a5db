"""Rounds in this process, without Dask. The bits of every other executor are compared with these."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Self, TypeVar

from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.base import DEFAULTS, Setting
from roundweave.tasks.numerics.devices import trim_memory
from roundweave.tasks.rounds.engine import BlockData, Committer, Engine
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.committing import Computed
from roundweave.tasks.rounds.persistence.mapping import load_block, map_and_persist
from roundweave.tasks.rounds.persistence.outcomes import HELD, read_outcome
from roundweave.tasks.rounds.timing import watched

if TYPE_CHECKING:
    from roundweave.tasks.rounds.evidence.results import RoundResult
    from roundweave.tasks.rounds.schedule import Schedule

T = TypeVar("T")


class InlineExecutor:
    """Runs rounds in this process, and notifies of maps that take long; see `Setting`."""

    name = "inline"
    """The name of the executor in commits. A subclass has a name of its own."""

    def __init__(self, setting: Setting = DEFAULTS) -> None:
        self.setting = setting
        self.end()

    @classmethod
    @contextmanager
    def opened(cls, setting: Setting) -> Iterator[Self]:
        """A context with an executor, which frees the examples at the end."""
        executor = cls(setting)
        try:
            yield executor
        finally:
            executor.end()

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """Call a function in this process, which is the only one."""
        return {"this process": function()}

    def gather(self, function: Callable[[int], T], numbers: Iterable[int], stored: bool = False) -> list[T]:
        """Call a function with each number."""
        return [function(number) for number in numbers]

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run the rounds from `first` to `last`, and yield each commit as it is made.

        Ends early after a commit that says to stop.
        """
        job = job.run_by(self.name)
        rounds = partial(self._arrivals, job.work.schedule) if job.work.schedule else self._rounds
        # If the store is slow, the next round's maps do not wait until a round is stored.
        committer = Committer(job, ahead=job.attempt.open().tensors.slow, held=last)
        with watched(self.setting.worker_timeout, job.work.partitions.called):
            for commit in committer.commits(rounds(job, first, last)):
                yield commit
                if commit.stop:
                    return

    def _rounds(self, job: Job, first: int, last: int) -> Iterator[Computed]:
        engine = Engine(job, self._data, partial(map_and_persist, job))
        return engine.rounds(read_outcome(job, first - 1), last)

    def _arrivals(self, schedule: Schedule, job: Job, first: int, last: int) -> Iterator[Computed]:
        """Yield the rounds of a schedule, each computed on demand."""
        server = self._servers.pop((job.attempt.token, first - 1), None) or schedule.here(job, first - 1)
        yield from server.rounds(self._data(job, first), last)
        # Keep the server for the next window only now: after a failure it has lost an update.
        self._servers = {(job.attempt.token, last): server}

    def end(self) -> None:
        """Free the examples and the last state. A later window reads them again."""
        self._data, self._servers = BlockData(0), {}
        HELD.clear()
        trim_memory()

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds, and yield the result of each in the given order. Nothing is written."""
        from roundweave.tasks.rounds.evidence.replaying import replay_block, replay_round

        with watched(self.setting.worker_timeout, job.work.partitions.called):
            for round in rounds:
                block = replay_block(job, round, self._data(job, round, load_block), 0)
                yield replay_round(job, round, [block])

    _data: BlockData
    _servers: dict[tuple[str, int], Any]
