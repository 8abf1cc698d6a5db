"""Rounds as Dask tasks on any cluster: map, reduce, score and commit.

A window of rounds is one graph. Its first task reads the last committed state from the store, unless its worker
still holds it, and needs no earlier future, so that a worker's death costs at most the window. Replayed rounds
need nothing but the store, and run all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Any, ClassVar

from distributed import Client

from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.log import CommitLog
from roundweave.tasks.executors.base import DEFAULTS, Setting
from roundweave.tasks.executors.clusters.routing import WITH_EXAMPLES, Key
from roundweave.tasks.executors.pool import WorkerPool, on_cluster
from roundweave.tasks.executors.quorum import QuorumRounds
from roundweave.tasks.executors.round_tasks import FAN_IN, RoundTasks
from roundweave.tasks.rounds.evidence.results import RoundResult
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.schedule import Schedule

Make = Callable[[RoundTasks, Sequence[int]], list[Key]]
"""Makes the tasks of rounds; returns for each round the key of the last one."""


class GraphExecutor:
    """Runs rounds as tasks on the workers of a Dask client; one task folds the results of `fan_in` blocks."""

    def __init__(self, client: Client, setting: Setting = DEFAULTS, fan_in: int = FAN_IN) -> None:
        self.pool = WorkerPool(client, setting)
        self.each, self.gather = self.pool.each, self.pool.gather
        self.fan_in = fan_in
        self._some = QuorumRounds(self.pool, fan_in)
        self._servers: dict[tuple[str, int], Any] = {}

    opened: ClassVar[Any] = classmethod(on_cluster)

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run the rounds from `first` to `last`, and yield each commit as it is made.

        Ends early after a commit that says to stop. Raises `ClusterError` if work is lost too often.
        """
        return self.pool.commits(job, first, last, partial(self.compute, job))

    def compute(self, job: Job, rounds: Sequence[int], losses: int) -> Iterator[Commit]:
        """Yield the commits of rounds, of which the last ones may be missing; see `WorkerPool.despite_losses`."""
        job = job.run_by("graph")
        if schedule := job.work.schedule:
            return self._serve(job, rounds, schedule)
        if not job.waits_for_all:
            return self._some.commits(job, rounds)
        return self._submit(RoundTasks.window, job, rounds, losses, job.attempt.open().log)

    def _serve(self, job: Job, rounds: Sequence[int], schedule: Schedule) -> Iterator[Commit]:
        """Run the rounds of a schedule on its server, which goes on from what was in flight.

        It is kept for the next window only if this one ends without a loss.
        """
        first, token = rounds[0], job.attempt.token
        server = self._servers.pop((token, first - 1), None) or schedule.by_tasks(self.pool, job, first - 1)
        for commit in server.rounds(rounds[-1]):
            for partition in commit.updates:
                self.pool.losses.deaths.pop(partition, None)
            yield commit
        if not self.pool.look():  # a short window may end before the first look at the workers
            self._servers = {(token, rounds[-1]): server}

    def end(self) -> None:
        """Drop the server of a schedule with what is in flight, if there is one."""
        self._servers = {}

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds, all at once, and yield the result of each in the given order. Nothing is written."""
        compute = partial(self._submit, RoundTasks.replays, job)
        return self.pool.despite_losses(job, rounds, compute, advice="the run is as it was")

    def _submit(
        self, make: Make, job: Job, rounds: Sequence[int], losses: int, log: CommitLog | None = None
    ) -> Iterator[Any]:
        """Submit rounds as one graph, and yield what the task gives of each whose key `make` returned.

        Of a round that the `log` has, it is the commit, whatever happened to its task. After a loss it is only the
        first round, which maps one partition at a time, so that an error can name a partition that kills its
        workers.
        """
        job = self.pool.spread(job, one_by_one=losses > 0)
        rounds = rounds[:1] if losses else rounds
        self.pool.losses.deaths.clear()
        tasks = RoundTasks(self.pool, job, self.fan_in)
        last = make(tasks, rounds)
        # Where a run may stop at a score, that comes before the next map, of which nobody may want the result.
        later = {*WITH_EXAMPLES} - ({"score"} if self.pool.routing.apart and job.attempt.may_stop else set())
        futures = tasks.submit(last, lambda key: 0 if key[0] in later else 1)
        try:
            for round, future in zip(rounds, futures, strict=True):
                done = partial(log.has, round) if log else bool
                self.pool.wait(future, unless=done)
                yield log.read(round) if log and done() else self.pool.result(future)
                future.release()
        finally:  # an error would keep the others, whose tasks would go on beside those of the next attempt
            for future in futures:
                future.release()
        self.pool.look()
