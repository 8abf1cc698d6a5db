"""The workers that a run loses: which are silent, and at which partitions they died."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from dask.utils import format_bytes
from distributed import Client
from distributed.scheduler import heartbeat_interval

from roundweave.storage.errors import ClusterError, listed
from roundweave.tasks.executors.clusters.routing import WITH_EXAMPLES, Task
from roundweave.tasks.executors.clusters.workers import LOOK_SECONDS, began, census, give_up, on_scheduler
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.timing import Stragglers, Timing, notify

STARVED = 3
"""How many workers may run out of memory one after the other, with nothing done between, before a run gives up."""


@dataclass(frozen=True)
class Lost:
    """A lost worker, with the keys of the tasks that it worked on and of finished tasks whose values were lost.

    `silent` is the number of seconds without a heartbeat after which it was given up, or None if it died by
    itself. `partition` is the one that it mapped at its last heartbeat, if any. `memory` is what it used of its
    limit if its nanny ended it because of that, else empty.
    """

    worker: str
    working: tuple[Hashable, ...]
    finished: tuple[Hashable, ...]
    silent: float | None
    partition: int | None
    memory: str


class Losses:
    """Watches a client's workers, and gives up those without a heartbeat for `worker_timeout` seconds.

    `deaths` counts by partition how many workers died at its work; a worker that had the work of several, of which
    it began one, counts as a share for each of them. `out_of_memory` counts workers that ran out of memory since
    something was done. `workers` are those of the last look.
    """

    def __init__(self, client: Client, worker_timeout: float) -> None:
        self.client = client
        self.worker_timeout = worker_timeout
        self.deaths: dict[int, Fraction] = {}
        self.out_of_memory = 0
        self.workers: set[str] = set()
        self._called: Callable[..., str] = lambda *numbers: f"partition {listed(numbers)}"
        self._stragglers = Stragglers(worker_timeout)
        self._attempt = ""
        self._since = began(client)
        self._all_paused = 0.0
        self._paused: set[str] = set()
        self._silence: dict[str, tuple[float, float]] = {}
        self._given_up: dict[str, float] = {}
        self._last: dict[str, tuple[float, Any, int]] = {}

    def look(self, job: Job | None) -> bool:
        """Look at what has happened since the last look, or since the run began.

        Returns whether a worker was lost. Notifies of lost and paused workers and of stragglers, and counts deaths
        at the partitions of a job. A look adds at most a second to a worker's silence, so that no worker is given
        up because this process was suspended. Raises `ClusterError` if the scheduler is gone, if all workers were
        paused for `worker_timeout` seconds, and once `STARVED` workers ran out of memory one after the other.
        """
        if job:
            self._called = self._stragglers.called = job.work.partitions.called
            self._attempt = job.attempt.token
        now, heartbeats, paused, gone = on_scheduler(self.client, census, self._since)
        passed, self._since = min(now - self._since, LOOK_SECONDS), now
        self.workers = {*heartbeats}
        self._last |= heartbeats
        self._give_up_silent(heartbeats, passed)
        self._stragglers.look([self._timing(values) for _, values, _ in heartbeats.values()])
        self._notify_paused(paused, bool(paused) and len(paused) == len(heartbeats), passed)
        for each in gone:
            self._count(self._lost(*each), job)
        return bool(gone)

    def _give_up_silent(self, heartbeats: Mapping[str, tuple[float, Any, int]], passed: float) -> None:
        """Give up workers whose last heartbeat was too long ago; `passed` are the seconds since the last look."""
        before, self._silence = self._silence, {}
        for worker, (heartbeat, *_) in heartbeats.items():
            last, silent = before.get(worker, (None, 0.0))
            self._silence[worker] = (heartbeat, silent + passed if last == heartbeat else 0.0)
        # With many workers, Dask makes each of them send heartbeats less often.
        limit = max(self.worker_timeout, 10 * heartbeat_interval(len(heartbeats)))
        silent_for = {worker: seconds for worker, (_, seconds) in self._silence.items() if seconds >= limit}
        if silent_for:
            self._given_up |= silent_for
            on_scheduler(self.client, give_up, list(silent_for))

    def _notify_paused(self, paused: Mapping[str, str], every: bool, passed: float) -> None:
        """Notify of paused workers, with the memory in use. Raises `ClusterError` if `every` one is for long."""
        for worker in paused.keys() - self._paused:
            memory = paused[worker]
            notify(f"worker {worker} is paused by Dask: it uses {memory} of memory; give workers more")
        self._paused = {*paused}
        self._all_paused = self._all_paused + passed if every else 0.0
        if self._all_paused >= self.worker_timeout:
            raise ClusterError(
                f"every worker has been paused by Dask for {self._all_paused:.0f} s, as its memory is short; give "
                "workers more memory, or fewer partitions each, and start again"
            )

    def _timing(self, values: Any) -> Timing:
        """Return the timing in a heartbeat. Maps of another run, which the worker may serve too, are left out."""
        timing = Timing(*values or ())
        return timing if timing.attempt == self._attempt else Timing()

    def _lost(self, worker: str, working: tuple[Hashable, ...], finished: tuple[Hashable, ...], used: int) -> Lost:
        _, values, limit = self._last.pop(worker, (0.0, None, used))
        memory = f"{format_bytes(used)} of {format_bytes(limit)}" if used else ""
        silent, at = self._given_up.pop(worker, None), self._timing(values).partition
        return Lost(worker, working, finished, silent, at, memory)

    def _count(self, lost: Lost, job: Job | None) -> None:
        """Count the death of a worker at the partitions of a job, and notify of it."""
        at = {partition for _, partition in _parts(job, lost.working, WITH_EXAMPLES)}
        at = at or {partition for partition in [lost.partition] if partition is not None}
        self.deaths |= {p: self.deaths.get(p, Fraction(0)) + Fraction(1, len(at)) for p in at}
        self.out_of_memory += bool(lost.memory)
        notify(_lost_line(lost, job, self._called))
        if self.out_of_memory == STARVED:
            what = f"{self.suspects()}{STARVED} workers ran out of memory in a row ({lost.memory})"
            self.deaths.clear()  # which are named
            raise ClusterError(f"{what}; give workers more memory, or more --partitions of fewer examples each")

    def suspects(self) -> str:
        """Return the partitions at which workers died most often, as the beginning of an error text.

        Empty for none.
        """
        most = max(self.deaths.values(), default=Fraction(0))
        at = [partition for partition, deaths in self.deaths.items() if deaths == most]
        return f"workers died at {self._called(*at)}: " if most else ""


def _parts(job: Job | None, keys: Iterable[Any], kinds: Sequence[str]) -> list[tuple[int, int]]:
    """Return what Dask keys of a job's attempt are about, as (number, partition), for the tasks of some kinds.

    The number is a round; for ``maps`` that of the first, and for ``data`` the job's `draw`.
    """
    if job is None:
        return []
    # Other programs on the cluster may have keys of any shape.
    tasks = [Task(*key) for key in keys if isinstance(key, tuple) and len(key) == 4 and key[0] in kinds]
    ours = [task for task in tasks if task.attempt == job.attempt.token]
    return [(task.round, partition) for task in ours for partition in task.partitions(job)]


def _lost_line(lost: Lost, job: Job | None, called: Callable[..., str]) -> str:
    """Return the line about a lost worker: why, and which partitions are mapped again in which rounds."""
    why = f"has been silent for {lost.silent:.0f} s and is given up" if lost.silent else "is lost"
    if lost.memory:
        at = "" if lost.partition is None else f" at {called(lost.partition)}"
        why = f"is lost, as it ran out of memory{at} ({lost.memory})"
    if not lost.working and not lost.finished:
        return f"worker {lost.worker} {why}; it had no work"
    keys = (*lost.working, *lost.finished)
    for of, kind in (("in round", "map"), ("as number", "maps")):
        if again := _parts(job, keys, [kind]):
            numbers, partitions = zip(*again, strict=True)
            return f"worker {lost.worker} {why}; mapped again {of} {listed(numbers)}: {called(*partitions)}"
    return f"worker {lost.worker} {why}; its work is done again"
