"""Rounds by ranks: a task stays on each Dask worker, and exchanges updates with the others as a process group.

Some rounds are left to the tasks of `GraphExecutor`: replays; those of a run that plugins may end; the round at
which a rank was lost (if ranks share a network, after the third loss in a row), so that a partition that kills
workers is named; and rounds in which maps raise, until there is a window in which none does. Of a parameter server
the rest of the window is left to tasks, and all of it if maps are long, since the rank that serves does not map.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import takewhile
from queue import Empty, SimpleQueue
from typing import Any, ClassVar
from urllib.parse import urlparse

from distributed import Client, Future, wait
from distributed.client import FuturesCancelledError

from roundweave.storage.errors import ClusterError, RoundweaveError
from roundweave.storage.rounds.commits import Commit
from roundweave.tasks.algorithms.algebra import says
from roundweave.tasks.executors.base import DEFAULTS, Setting
from roundweave.tasks.executors.clusters.calls import run_step
from roundweave.tasks.executors.clusters.workers import (
    LOOK_SECONDS,
    Idleness,
    LostWork,
    processes,
    usable_workers,
)
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.pool import RESUBMISSIONS, WorkerPool, on_cluster
from roundweave.tasks.executors.rank_task import Event, halt, take_part
from roundweave.tasks.process_group.group import Rendezvous
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.persistence.mapping import load_and_persist
from roundweave.tasks.rounds.steps import MapRaised
from roundweave.tasks.rounds.timing import notify

ENCRYPTED = ("tls", "wss")
"""The encrypted protocols of Dask. Gloo, by which ranks exchange, has no encryption."""

SHARING_SECONDS = 60.0
"""Seconds that ranks of one network wait for workers after a loss, before each gets the whole network instead."""

SHORT_SECONDS = 5.0
"""With `auto`, ranks do rounds that take fewer seconds. In longer rounds they would save only a small part."""

TASK_SECONDS, FIRST_MAPS = 0.01, 16
"""About what a map costs as a task: one rank serves a schedule, and does not map, if maps end more often.

They are expected to until so many maps are known.
"""

SHARING_LOSSES = 2
"""How many times in a row ranks share a network again at one round, before tasks with the whole network do it."""

END_SECONDS = 30
"""Seconds that halted ranks may take for their last round."""

FOLLOWING_SECONDS = 5
"""Seconds that are waited, after a rank has ended early, for another one to say why."""


class RanksExecutor:
    """Runs rounds on the workers of a Dask client, each of which is a rank, and leaves some to tasks.

    Ranks on several machines of an encrypted cluster raise `ClusterError`, unless `plain_ranks` allows that they
    exchange unencrypted data.
    """

    def __init__(self, client: Client, setting: Setting = DEFAULTS) -> None:
        self.graph = GraphExecutor(client, setting)
        self.pool = self.graph.pool
        self.each, self.gather, self.replay = self.graph.each, self.graph.gather, self.graph.replay
        self._running: RunningRanks | None = None
        self._notified = ""
        self._shared_network = False
        self._map_raised = False
        self._mapped: list[float] = []  # the seconds of the first maps for a parameter server

    opened: ClassVar[Any] = classmethod(on_cluster)

    def run(self, job: Job, first: int, last: int, by_tasks: bool = False) -> Iterator[Commit]:
        """Run the rounds from `first` to `last`, and yield each commit as it is made. The ranks go on after it.

        With `by_tasks`, Dask's tasks do all of these rounds.
        """
        able = not by_tasks and self._can(job, self._awaited_workers(job))
        most = RESUBMISSIONS + able * _sharing_losses(job)
        compute = partial(self._compute if able else self._by_tasks, job)
        for commit in self.pool.commits(job, first, last, compute, most):
            if commit.server and len(self._mapped) < FIRST_MAPS:
                self._mapped += [each.seconds for each in commit.updates.values()]
            yield commit

    def _compute(self, job: Job, rounds: Sequence[int], losses: int) -> Iterator[Commit]:
        """Yield the commits of the ranks, or after losses, or if a map raised, those of Dask's tasks."""
        if self._map_raised or losses > _sharing_losses(job):
            yield from self._by_tasks(job, rounds, losses)
            return
        if losses:
            self.let_go()
            self._awaited_workers(job)
        try:
            yield from self._by_ranks(job, rounds[0], rounds[-1])
        except LostWork:
            self.let_go()
            raise
        except MapRaised:
            self.let_go()
            self.pool.forget()
            self._map_raised = True

    def _by_tasks(self, job: Job, rounds: Sequence[int], losses: int) -> Iterator[Commit]:
        """Yield the commits of Dask's tasks, after those that ranks have made and not told."""
        self.let_go()
        log, raised = job.attempt.open().log, False
        made = [*takewhile(log.has, rounds)]
        yield from map(log.read, made)
        rest = rounds[len(made) :]
        for commit in self.graph.compute(job, rest, losses) if rest else ():
            self._map_raised = raised = raised or any(record.raised for record in commit.updates.values())
            yield commit

    def end(self) -> None:
        """Halt the ranks after the round that they are computing, and wait until they have ended."""
        self.graph.end()
        self.let_go()

    def let_go(self) -> None:
        """Let the ranks end, and wait until they have: no two parameter servers may commit at once."""
        if self._running is not None:
            self._running.halt()
            self._running.release()
            self._running = None

    def _awaited_workers(self, job: Job) -> dict[str, tuple[str, int]]:
        """Return the `processes` of the workers.

        Waits a while if ranks shared a network and too few are left for it.
        """
        until, client = time.monotonic() + SHARING_SECONDS, self.pool.client
        workers = processes(client)
        while self._shared_network and min(len(workers), len(usable_workers(client))) < job.ranks:
            if time.monotonic() > until:
                break
            time.sleep(LOOK_SECONDS)
            workers = processes(client)
        return workers

    def _by_ranks(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Yield the commits of the running ranks, or of new ranks if workers came or went or none are running."""
        spread = self.pool.spread(job.run_by("ranks"), ranks=job.ranks)
        serving = _serving(job)
        spread = replace(spread, blocks=max(1, min(spread.blocks, len(self.pool.workers) - serving)))
        if self._running is None or not self._running.goes_on(spread, first - 1, self.pool.workers):
            self.end()
            if len(self.pool.workers) < job.ranks + serving:
                raise LostWork("there are fewer workers than ranks that need each other")
            self._shared_network = job.ranks > 1
            self._running = RunningRanks(self.pool, spread, first - 1)
        return self._running.commits(last)

    def _can(self, job: Job, workers: Mapping[str, tuple[str, int]]) -> bool:
        """Whether ranks can do the job: there are enough workers, each a process of its own with an address."""
        if self.pool.routing.apart or not job.waits_for_all or not job.attempt.may_go_ahead:
            return False
        if not (self._serves(job, len(workers)) and self._share(job, len(workers))):
            return False
        if self.send_plain(workers):
            raise ClusterError(
                "the cluster encrypts its messages, and ranks on several machines do not; give --executor graph, "
                "or --plain-ranks where nobody else is on their network"
            )
        return len(set(workers.values())) == len(workers) and all(urlparse(worker).hostname for worker in workers)

    def _serves(self, job: Job, workers: int) -> bool:
        """Tell whether one of so many workers may be the job's parameter server, if it needs one, and not map."""
        if not _serving(job):
            return True
        mapping = min(workers - 1, job.work.partitions.taking_part)
        known = min(self._mapped) if len(self._mapped) >= FIRST_MAPS else 0.0
        return job.ranks == 1 and mapping > 0 and known / mapping < TASK_SECONDS

    def _share(self, job: Job, workers: int) -> bool:
        """Tell whether ranks can share the job's network as asked; if not, notify once of the reason."""
        parts, why = (job.work.algorithm.reduce, job.work.algorithm.apply), ""
        if job.ranks > 1 and (whole := next((part for part in parts if not says(part, "elementwise")), None)):
            why = f"{whole} needs whole networks in one place"
        elif job.ranks > workers:
            why = f"{job.ranks} ranks that share a network need as many workers, of which there are {workers}"
        if why and why != self._notified:
            self._notified = why
            notify(f"{why}: each has the whole network")
        return not why

    def send_plain(self, workers: Mapping[str, tuple[str, int]]) -> bool:
        """Tell whether ranks would send unencrypted data over the network of an encrypted cluster, and may not.

        `workers` has the machine and process of each worker.
        """
        machines = {machine for machine, _ in workers.values()}
        encrypted = any(urlparse(worker).scheme in ENCRYPTED for worker in workers)
        return encrypted and len(machines) > 1 and not self.pool.setting.plain_ranks


class AutoExecutor:
    """Runs rounds by ranks, and by Dask's tasks those that take long, since a lost worker costs less there.

    Networks that ranks share are never left to tasks because of that. Ranks that would have to exchange
    unencrypted data are not chosen.
    """

    def __init__(self, client: Client, setting: Setting = DEFAULTS) -> None:
        self.ranks = RanksExecutor(client, setting)
        self.pool, self.end = self.ranks.pool, self.ranks.end
        self.each, self.gather, self.replay = self.ranks.each, self.ranks.gather, self.ranks.replay
        self._seconds = setting.round_seconds

    opened: ClassVar[Any] = classmethod(on_cluster)

    def run(self, job: Job, first: int, last: int) -> Iterator[Commit]:
        """Run the rounds from `first` to `last`, and yield each commit as it is made."""
        long = job.ranks == 1 and self._seconds >= SHORT_SECONDS
        by_tasks = long or self.ranks.send_plain(processes(self.pool.client))
        for commit in self.ranks.run(job, first, last, by_tasks):
            self._seconds = min(self._seconds, commit.seconds)
            yield commit


def _sharing_losses(job: Job) -> int:
    """Return how many times in a row a loss leaves a round to ranks again."""
    return SHARING_LOSSES if job.ranks > 1 else 0


def _serving(job: Job) -> int:
    """Return how many ranks map no block, as one that serves a schedule does not."""
    return int(job.work.schedule is not None)


def _rank_workers(job: Job, workers: list[str]) -> list[str]:
    """Return the workers that become ranks, in the order of the ranks: those of one network are neighbours.

    One that has no block is the first rank if that is a parameter server.
    """
    return workers[job.blocks : job.blocks + _serving(job)] + workers[: job.blocks * job.ranks]


class RunningRanks:
    """Ranks that compute the rounds of a job from a committed `round` on, until one is lost or the run ends.

    `committed` is the last round whose commit was yielded.
    """

    def __init__(self, pool: WorkerPool, job: Job, round: int) -> None:
        self.pool = pool
        self.job = job
        self.committed = self._made = round
        self._workers = _rank_workers(job, pool.workers)
        self._topic = f"roundweave-{secrets.token_hex(4)}"
        self._events: SimpleQueue[tuple[str, int]] = SimpleQueue()
        self._idleness = Idleness(pool.client)
        self._broken: float | None = None
        self._error: RoundweaveError | None = None
        self._first_ended = False
        self._draw = job.draw(round + 1)
        self._data: list[Any] = [{}] * _serving(job) + pool.data(job, round + 1, load_and_persist)
        pool.client.subscribe_topic(self._topic, self._listen)
        self._ranks = {0: self._submit(0, port=0)}

    def goes_on(self, job: Job, round: int, workers: list[str]) -> bool:
        """Whether these ranks work on this job, have yielded its commits up to `round`, and use all `workers`."""
        same = self.job.attempt.token == job.attempt.token and self.committed == round
        return same and self._workers == _rank_workers(job, workers)

    def commits(self, last: int) -> Iterator[Commit]:
        """Yield the commits up to round `last` as they are made. Raises `LostWork` if a rank is lost."""
        log = self.job.attempt.open().log
        while self.committed < last:
            while self._made == self.committed:
                self._handle_event()
            commit = log.read(self.committed + 1)
            self.committed = commit.round
            yield commit

    def halt(self) -> None:
        """Have the ranks end after the round that they compute now. Waits for those on workers still there."""
        client = self.pool.client
        with suppress(TimeoutError, FuturesCancelledError, OSError):
            workers = client.nthreads()
            ranks = {
                worker: self._ranks[rank]
                for rank, worker in enumerate(self._workers)
                if worker in workers and rank in self._ranks
            }
            if ranks and not all(future.done() for future in ranks.values()):
                client.run(halt, self._topic, workers=list(ranks), wait=False, on_error="ignore")
                with client.as_current():
                    wait(list(ranks.values()), timeout=END_SECONDS)

    def release(self) -> None:
        """Stop listening to the ranks, which then end, since nobody waits for them."""
        self.pool.client.unsubscribe_topic(self._topic)
        for future in self._ranks.values():
            future.release()

    def _submit(self, rank: int, port: int) -> Future[Any]:
        meeting = Rendezvous(rank, len(self._workers), str(urlparse(self._workers[0]).hostname), port)
        shared = self.pool.shared(self.job)
        future = self.pool.client.submit(
            run_step,
            take_part,
            shared,
            self._draw,
            self._data[rank // self.job.ranks],
            meeting,
            self._topic,
            key=("rank", self._topic, self.committed + 1, rank),
            workers=[self._workers[rank]],
        )
        future.add_done_callback(lambda _: self._events.put(("end", rank)))
        return future

    def _listen(self, event: tuple[float, Event]) -> None:
        self._events.put(event[1])

    def _handle_event(self) -> None:
        """Wait a while for the next event of a rank, and act on it. Raises `LostWork` if a rank is lost."""
        try:
            kind, number = self._events.get(timeout=LOOK_SECONDS)
        except Empty:
            self._look()
            return
        if kind == "port":
            self._ranks |= {rank: self._submit(rank, number) for rank in range(1, len(self._workers))}
        elif kind == "end":
            self._ended(number)
        else:
            self._made = max(self._made, number)

    def _look(self) -> None:
        if self.pool.look():
            raise LostWork("the worker of a rank is lost")
        if self._broken is not None and time.monotonic() > self._broken + FOLLOWING_SECONDS:
            if self._error is not None:
                raise self._error
            notify("ranks no longer reach each other, but their workers answer; tasks compute this round")
            raise LostWork("a rank is lost")
        self._idleness.look()

    def _ended(self, rank: int) -> None:
        """Take note that a rank has ended. Its result is the last committed round, or None after a loss.

        Raises a rank's error, if one ended with one, once rank 0 has ended and has told of all rounds before it.
        """
        self._first_ended = self._first_ended or rank == 0
        last: int | None = None
        try:
            last = self.pool.result(self._ranks[rank])
        except RoundweaveError as error:
            self._error = self._error or error
        if self._error is not None and self._first_ended:
            raise self._error
        if last is not None:
            self._made = max(self._made, last)
        elif self._broken is None:
            self._broken = time.monotonic()
            self._look()
