"""A parameter server on Dask, whose client decides in which order pushes are applied, as they arrive.

No tensor passes through the client. One task applies all pushes that arrived while the server was busy; the
partitions that pushed then fetch the state after it. Another task commits several rounds at a time, so that the
server never waits for the store.
"""

from __future__ import annotations

import operator
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from typing import Any

from roundweave.flows.plugins.parameter_server.server import ArrivingServer, Result
from roundweave.flows.plugins.parameter_server.steps import commit_server_rounds
from roundweave.storage.errors import RoundweaveError
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.executors.clusters.calls import elsewhere, run_step, step_aside
from roundweave.tasks.executors.clusters.workers import LOOK_SECONDS, Idleness, LostWork, finished
from roundweave.tasks.executors.pool import WorkerPool
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import load_and_persist

SHORT_SECONDS = 0.02
"""Maps that take fewer seconds are short: those of one worker become one task, as a task costs some milliseconds.

For 10 partitions of the digits on 2 workers this gives about 1.7 times as many updates a second (2 busy cores).
"""

PRIORITY = {"read": 3, "serve": 3, "version": 3, "commit": 1}
"""Dask's priority by the kind of task, else 0: the tasks that others wait for go first."""


class DaskServer(ArrivingServer):
    """An asynchronous run by tasks on a cluster, from a committed round on, until work is lost or the run ends.

    Maps go on between windows of rounds. `committed` is the last round whose commit was yielded.
    """

    def __init__(self, pool: WorkerPool, job: Job, round: int) -> None:
        # Where examples stay, a map that raised is tried there.
        again = operator.call if pool.routing.apart else elsewhere
        super().__init__(pool.spread(job), round, self._submit, again)
        self.pool = pool
        self.committed = round
        self._homes = [pool.home(block) for block in range(self.job.blocks)]
        self._home = self._homes[0]  # the worker that the server's own tasks prefer
        self._done: SimpleQueue[tuple[Result, Sequence[int]]] = SimpleQueue()
        self._committing: Result | None = None
        self._seconds: dict[int, float] = {}
        self._idleness = Idleness(pool.client)
        self._looked = time.monotonic()

    def rounds(self, last: int) -> Iterator[Commit]:
        """Compute the rounds up to `last`, and yield each commit as it is made.

        If work fails or is lost, it yields the commits that are still made, and then raises the error.
        """
        try:
            yield from self._rounds(last)
        except (LostWork, RoundweaveError):
            with suppress(LostWork, RoundweaveError):  # what is being committed must end before other work begins
                self._settle()
            log = self.job.attempt.open().log
            yield from (log.read(round) for round in range(self.committed + 1, last + 1) if log.has(round))
            raise

    def _rounds(self, last: int) -> Iterator[Commit]:
        self._home = self._fastest()
        self._server.data = self.pool.data(self.job, self._server.round + 1, load_and_persist)
        due = self._go_on()
        suspects = due & self.pool.losses.deaths.keys()
        if suspects:
            self.pool.await_loaded(self._server.data)
        for partition in suspects:  # one after the other, so that the next death is that of one alone
            self._begin([partition])
            while partition not in self._arrived:
                self._wait()
        self._begin(due - suspects)
        while self.committed < last:
            while self._take_in(last):
                pass
            self._commit_next(last)
            for commit in self._wait():
                self.committed = commit.round
                yield commit

    def _settle(self) -> None:
        """Drop the pushes in flight, and wait for the commits under way. Raises as `finished` does."""
        for task, _ in self._server.maps.values():
            task.release()  # its callback holds it, too, until it is done
        if self._committing is not None:
            try:
                finished(self.pool.client, self._committing)
            finally:  # what no worker has begun must not begin beside other work: it would commit other pushes
                self._committing.release()

    def _submit(self, kind: str, number: int, at: Any, function: Callable[..., Any], *arguments: Any) -> Result:
        """Submit a task as `Submit` says."""
        block = self._blocks[at[0]] if isinstance(at, tuple) else at
        place = self._home if block is None else self._homes[block]
        key, shared = self.pool.key(self.job, kind, number, at or 0), self.pool.shared(self.job)
        call = step_aside if kind == "commit" else run_step
        priority = PRIORITY.get(kind, 0)
        return self.pool.submit_one(self.job, key, place, call, function, shared, *arguments, priority=priority)

    def _fastest(self) -> str:
        """The worker for the server's tasks: the one whose maps have the lowest median of seconds."""
        seconds: dict[str, list[float]] = {home: [] for home in self._homes}
        for partition, took in self._seconds.items():
            if partition in self._blocks:
                seconds[self._homes[self._blocks[partition]]].append(took)
        return min(seconds, key=lambda home: statistics.median(seconds[home] or [0.0]))

    def _is_short(self, partition: int) -> bool:
        """Whether the maps of a partition are known to be short, from the seconds of its last one."""
        return self._seconds.get(partition, SHORT_SECONDS) < SHORT_SECONDS

    def _begin(self, partitions: Iterable[int]) -> None:
        """Submit the maps of partitions, all short ones of a block in one task."""
        together: dict[tuple[int, int], list[int]] = {}
        for partition in partitions:
            key = self._blocks[partition], -1 if self._is_short(partition) else partition
            together.setdefault(key, []).append(partition)
        for (block, _), group in together.items():
            self._server.begin(group, block).add_done_callback(partial(self._notify, group))

    def _commit_next(self, last: int) -> None:
        """Submit a task that commits rounds, unless one is under way. `last` is the window's last round."""
        if self._committing is not None or not self._uncommitted:
            return
        # Rounds that wait for scores begin a task of their own, so that earlier rounds do not wait for these.
        scored = (at for at, each in enumerate(self._uncommitted) if at and each.scores)
        end = next(scored, len(self._uncommitted))
        batch, self._uncommitted = self._uncommitted[:end], self._uncommitted[end:]
        served = [*map(list, batch)]  # in which Dask finds what stands for values
        self._committing = self._submit("commit", self.committed + 1, None, commit_server_rounds, served, last)
        self._committing.add_done_callback(partial(self._notify, ()))

    def _notify(self, arrived: Sequence[int], future: Result) -> None:
        """Called by Dask when the pushes of partitions have arrived, or, with none, when rounds are committed."""
        self._done.put((future, arrived))

    def _wait(self) -> list[Commit]:
        """Wait for pushes or commits, and return the commits. Raises `LostWork` once a worker is gone."""
        if time.monotonic() - self._looked >= LOOK_SECONDS:
            self._looked = time.monotonic()
            if self.pool.look():
                raise LostWork("a worker is gone")
        commits: list[Commit] = []
        try:
            done = [self._done.get(timeout=LOOK_SECONDS)]
        except Empty:
            self._idleness.look()
            return commits
        while not self._done.empty():
            done.append(self._done.get())
        for future, arrived in done:
            if arrived:
                self.pool.wait(future)
                self._arrived.extend(arrived)
            else:
                commits, self._committing = self.pool.result(future), None
                self._seconds |= {p: update.seconds for commit in commits for p, update in commit.updates.items()}
        return commits
