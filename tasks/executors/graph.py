"""Rounds as Dask tasks on any cluster: map, reduce, score and commit.

A window of rounds is one graph. Its first task reads the last committed state from the store, unless its worker
still holds it, and needs no earlier future, so that a worker's death costs at most the window. Replayed rounds
need nothing but the store, and run all at once.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from functools import partial
from typing import Any, Self, TypeVar

import dask
from distributed import Client, Future, LocalCluster

from roundweave.storage.errors import ClusterError, StoreError
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.log import CommitLog
from roundweave.tasks.executors.base import DEFAULTS, Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import (
    SITE,
    DeadlyWork,
    LostWork,
    connected,
    finished,
    result,
    usable_workers,
    wait_at_most,
)
from roundweave.tasks.executors.deadline import DeadlineRounds
from roundweave.tasks.executors.parameter_server.on_dask import DaskServer
from roundweave.tasks.executors.pool import AT_SITES, PLACED, Key, WorkerPool, itself, run_step
from roundweave.tasks.executors.round_tasks import FAN_IN, RoundTasks
from roundweave.tasks.rounds.evidence.results import RoundResult
from roundweave.tasks.rounds.job import Job

T = TypeVar("T")

RESUBMISSIONS = 2
"""How many times in a row lost work is submitted again before a run gives up."""


Make = Callable[[RoundTasks, Sequence[int]], list[Key]]
"""Makes the tasks of rounds; returns for each round the key of the last one."""


class GraphExecutor:
    """Runs rounds as tasks on the workers of a Dask client; one task folds the results of `fan_in` blocks."""

    def __init__(self, client: Client, setting: Setting = DEFAULTS, fan_in: int = FAN_IN) -> None:
        self.client = client
        self.setting = setting
        self.pool = WorkerPool(client, setting)
        self.fan_in = fan_in
        self._deadline = DeadlineRounds(self.pool, fan_in)
        self._server: DaskServer | None = None

    @classmethod
    @contextmanager
    def opened(cls, setting: Setting) -> Iterator[Self]:
        """A context with an executor on a cluster, which is started if none is named. Raises `ClusterError`."""
        local = setting.scheduler, setting.workers, setting.private, setting.wait_for_workers
        cluster = connect(*local, {f"{SITE}{site}" for site in setting.sites}, setting.certificates)
        with cluster as client, ExitStack() as stack:
            if isinstance(client.cluster, LocalCluster) and not setting.sites:
                setting = replace(setting, store="")  # its workers see what this process sees
            executor = cls(client, setting)
            stack.callback(executor.pool.end)
            yield executor

    def each(self, function: Callable[[], T]) -> dict[str, T]:
        """Call a function on each worker that is there now; the results by the worker's address.

        Raises `ClusterError` if workers come and go meanwhile.
        """
        for _ in range(RESUBMISSIONS + 1):
            results = self._prepared(partial(self._ask_each, function))
            if results.keys() <= set(usable_workers(self.client)):
                return results  # otherwise another worker has answered for one that is gone
        raise ClusterError("workers come and go while each is asked; start again once they stay")

    def _ask_each(self, function: Callable[[], T]) -> dict[str, T]:
        workers = usable_workers(self.client)
        futures = [
            self.client.submit(run_step, function, workers=[worker], allow_other_workers=True, pure=False)
            for worker in workers
        ]
        return dict(zip(workers, map(self._result, futures), strict=True))

    def gather(self, function: Callable[[int], T], numbers: Iterable[int], stored: bool = False) -> list[T]:
        """Call a function with each partition's number on the workers; the results in order of partitions.

        If `stored`, numbers are of anything else, and the function is called where the store is reached.
        """
        return self._prepared(partial(self._ask_of_each, function, tuple(numbers), "gather" if stored else "data"))

    def _ask_of_each(self, function: Callable[[int], T], numbers: Sequence[int], kind: str) -> list[T]:
        usable_workers(self.client)  # waits for those of sites
        if kind not in AT_SITES:
            self.pool.await_storing()
        # It is sent once, as it may hold a network; Dask warns of that, and would send it with each number.
        with dask.config.set({"distributed.admin.large-graph-warning-threshold": "1 TB"}):
            at = self.pool.needs("gather", 0) if self.pool.stores else {}
            shared = self.client.submit(itself, function, pure=False, resources=at)
        futures = [
            self.client.submit(run_step, shared, number, pure=False, resources=self.pool.needs(kind, number))
            for number in numbers
        ]
        return list(map(self._result, futures))

    def _result(self, future: Future[Any]) -> Any:
        return result(self.client, future, look=self.pool.look)

    def _prepared(self, ask: Callable[[], T]) -> T:
        """What `ask` gets from workers before round 1; it is called again after a loss."""
        self.pool.deaths.clear()
        (results,) = self._despite_losses(None, [0], lambda rounds, losses: iter([ask()]), _resume_advice)
        self.pool.look()
        return results

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run the rounds from `first` to `last`, and yield each commit as it is made.

        Ends early after a commit that says to stop. Raises `ClusterError` if work is lost too often.
        """
        rounds, asynchronous = range(first, last + 1), job.work.algorithm.when.asynchronous
        compute = partial(self._compute, job)
        for commit in self._despite_losses(job, rounds, compute, _resume_advice, by_deaths=asynchronous):
            yield commit
            if commit.stop:
                return

    def _compute(self, job: Job, rounds: Sequence[int], losses: int) -> Iterator[Commit]:
        """Yield the commits of rounds, of which the last ones may be missing; see `_despite_losses`."""
        job = job.run_by("graph")
        if job.work.algorithm.when.asynchronous:
            return self._serve(job, rounds)
        if not job.waits_for_all:
            sites = [f"{SITE}{site}" for site in self.setting.sites]
            wait_at_most(self.client, self.setting.wait_for_workers, sites, min(len(sites), job.work.quorum))
            return self._deadline.commits(self.pool.spread(job), rounds)
        return self._submit(RoundTasks.window, job, rounds, losses, job.attempt.open().log)

    def _serve(self, job: Job, rounds: Sequence[int]) -> Iterator[Commit]:
        """Run asynchronous rounds on a parameter server, which goes on from what was in flight.

        It is kept for the next window only if this one ends without a loss.
        """
        server, self._server, goes_on = self._server, None, True
        if server is None or not server.goes_on(job, rounds[0] - 1):
            server = DaskServer(self.pool, job, rounds[0] - 1)
        for commit in server.rounds(rounds[-1]):
            for partition in commit.updates:
                self.pool.deaths.pop(partition, None)
            goes_on = not commit.stop and commit.round < job.attempt.rounds
            yield commit
        # A short window may end before the first look at the workers.
        self._server = None if self.pool.look(job) or not goes_on else server

    def end(self) -> None:
        """Drop the parameter server with what is in flight, if there is one."""
        self._server = None

    def replay(self, job: Job, rounds: Sequence[int]) -> Iterator[RoundResult]:
        """Replay rounds, all at once, and yield the result of each in the given order. Nothing is written."""
        compute = partial(self._submit, RoundTasks.replays, job)
        yield from self._despite_losses(job, rounds, compute, lambda round: "the run is as it was")

    def _despite_losses(
        self,
        job: Job | None,
        rounds: Sequence[int],
        compute: Callable[[Sequence[int], int], Iterator[T]],
        advice: Callable[[int], str],
        by_deaths: bool = False,
    ) -> Iterator[T]:
        """Yield the result of each round. If work is lost, begin again at the first round that is not done.

        Round 0 is the work before round 1, when there is no job yet. `compute` gets the rounds to do, and how
        often in a row work was lost. Raises `ClusterError` if that is too often; it names the partitions at which
        workers died, and says what `advice` has for the round. With `by_deaths` a partition's deaths count, even
        if other rounds were done between them.
        """
        losses = self.pool.out_of_memory = 0
        while rounds:
            try:
                with connected(self.client):
                    for done in compute(rounds, losses):
                        yield done
                        rounds, losses, self.pool.out_of_memory = rounds[1:], 0, 0
            except LostWork as error:
                self.pool.look(job)
                if isinstance(error.__cause__, StoreError):
                    self.pool.ask_again(error.__cause__)
                    self.end()
                else:
                    losses = max(losses + 1, int(max(self.pool.deaths.values(), default=0)) if by_deaths else 0)
                most = self._most_losses(job)
                if losses > most or (losses == most and isinstance(error, DeadlyWork)):
                    what = f"round {rounds[0]}" if rounds[0] else "work before round 1"
                    line = f"{what} was lost {losses} times ({self.pool.suspects()}{error})"
                    raise ClusterError(f"{line}; {advice(rounds[0])}") from error
                self.pool.forget()
            except ClusterError as error:
                raise ClusterError(f"{self.pool.suspects()}{error}") from error

    def _most_losses(self, job: Job | None) -> int:
        """How many times in a row lost work is begun again."""
        return RESUBMISSIONS

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
        self.pool.deaths.clear()
        tasks = RoundTasks(self.pool, job, self.fan_in)
        last = make(tasks, rounds)
        # Where a run may stop at a score, that comes before the next map, of which nobody may want the result.
        later = {*PLACED} - ({"score"} if self.pool.apart and job.attempt.may_stop else set())
        futures = self.pool.submit(job, tasks.graph, last, lambda key: 0 if key[0] in later else 1)
        try:
            for round, future in zip(rounds, futures, strict=True):
                done = partial(log.has, round) if log else bool
                finished(self.client, future, unless=done, look=partial(self.pool.look, job))
                yield log.read(round) if log and done() else result(self.client, future)
                future.release()
        finally:  # an error would keep the others, whose tasks would go on beside those of the next attempt
            for future in futures:
                future.release()
        self.pool.look(job)


def _resume_advice(round: int) -> str:
    return f"rounds to {round - 1} are kept, `roundweave resume` goes on" if round else "start again"
