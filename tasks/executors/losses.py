"""The workers that a run loses: at which partitions they died, and what the user reads of them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from fractions import Fraction
from typing import Any

from distributed import Client

from roundweave.storage.errors import ClusterError, listed
from roundweave.tasks.executors.clusters.placement import PUSHES, WITH_EXAMPLES, Task
from roundweave.tasks.executors.clusters.workers import Lost, Watch
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.timing import Stragglers, notify

STARVED = 3
"""How many workers may run out of memory one after the other, with nothing done between, before a run gives up."""


class Losses:
    """Watches a client's workers.

    `deaths` counts by partition how many workers died at its work; a worker that had the work of several, of which
    it began one, counts as a share for each of them. `out_of_memory` counts workers that ran out of memory since
    something was done. `workers` are those of the last look.
    """

    def __init__(self, client: Client, worker_timeout: float) -> None:
        self.deaths: dict[int, Fraction] = {}
        self.out_of_memory = 0
        self.workers: tuple[str, ...] = ()
        self._watch = Watch(client, worker_timeout)
        self._stragglers = Stragglers(worker_timeout)
        self._paused: set[str] = set()

    def look(self, job: Job | None) -> bool:
        """Notify of lost and paused workers and of stragglers, and count deaths at the partitions of a job.

        Returns whether a worker was lost since the last look. Raises `ClusterError` once `STARVED` workers ran out
        of memory one after the other.
        """
        seen = self._watch.look()
        self.workers = seen.workers
        self._stragglers.look(seen.timings)
        for worker in seen.paused.keys() - self._paused:
            memory = seen.paused[worker]
            notify(f"worker {worker} is paused by Dask: it uses {memory} of memory; give workers more")
        self._paused = set(seen.paused)
        for lost in seen.lost:
            at = {partition for _, partition in _parts(job, lost.working, WITH_EXAMPLES)}
            at = at or {partition for partition in [lost.partition] if partition is not None}
            self.deaths |= {p: self.deaths.get(p, Fraction(0)) + Fraction(1, len(at)) for p in at}
            self.out_of_memory += bool(lost.memory)
            notify(_lost_line(lost, job))
            if self.out_of_memory == STARVED:
                what = f"{self.suspects()}{STARVED} workers ran out of memory in a row ({lost.memory})"
                self.deaths.clear()  # which are named
                raise ClusterError(
                    f"{what}; give workers more memory, or more --partitions of fewer examples each"
                )
        return bool(seen.lost)

    def suspects(self) -> str:
        """The partitions at which workers died most often, as the beginning of an error text; empty for none."""
        most = max(self.deaths.values(), default=Fraction(0))
        at = listed(partition for partition, deaths in self.deaths.items() if deaths == most)
        return f"workers died at partition {at}: " if most else ""


def _parts(job: Job | None, keys: Iterable[Any], kinds: Sequence[str]) -> list[tuple[int, int]]:
    """What Dask keys of a job's attempt are about, as (number, partition), for the tasks of some kinds.

    The number is a round; for a ``push`` its own, and for ``data`` the job's `draw`.
    """
    if job is None:
        return []
    # Other programs on the cluster may have keys of any shape.
    tasks = [Task(*key) for key in keys if isinstance(key, tuple) and len(key) == 4 and key[0] in kinds]
    ours = [task for task in tasks if task.attempt == job.attempt.token]
    return [(task.round, partition) for task in ours for partition in task.partitions(job)]


def _lost_line(lost: Lost, job: Job | None) -> str:
    """The line about a lost worker: why, and which partitions are mapped again in which rounds or pushes."""
    why = f"has been silent for {lost.silent:.0f} s and is given up" if lost.silent else "is lost"
    if lost.memory:
        at = "" if lost.partition is None else f" at partition {lost.partition}"
        why = f"is lost, as it ran out of memory{at} ({lost.memory})"
    if not lost.working and not lost.finished:
        return f"worker {lost.worker} {why}; it had no work"
    keys = (*lost.working, *lost.finished)
    for of, kinds in (("round", ["map"]), ("push", PUSHES)):
        if again := _parts(job, keys, kinds):
            numbers, partitions = map(listed, zip(*again, strict=True))
            return f"worker {lost.worker} {why}; mapped again in {of} {numbers}: partition {partitions}"
    return f"worker {lost.worker} {why}; its work is done again"
