"""The workers of a cluster as executors see them: who is there, what they hold, and what becomes of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import suppress
from dataclasses import replace
from typing import Any

from distributed import Client, Future

from storage.errors import listed
from tasks.clusters.workers import ANSWER_SECONDS, Watch, usable_workers
from tasks.executors.notices import lost_line
from tasks.executors.on_worker import step
from tasks.rounds.job import Job
from tasks.rounds.pace import Hangs, Notice
from tasks.rounds.plan import RoundPlan
from tasks.when import Asynchronous

Key = tuple[str, str, int, int]
"""(kind, attempt with spread and number of blocks, round, block); of a ``turn`` the turn and the partition.

Dask keeps durations by kind, and a key must never mean two things.
"""

PLACED = ("data", "map", "score", "turn", "turns")
"""Kinds of tasks that prefer the worker that holds their examples; the small others overtake them."""


class Pool:
    """The workers of a Dask client, and the futures that they hold for longer than a window of rounds."""

    def __init__(self, client: Client, worker_timeout: float, notice: Notice) -> None:
        self.client = client
        self.notice = notice
        self.workers: list[str] = []
        self.deaths: Counter[int] = Counter()
        self._watch = Watch(client, worker_timeout)
        self._hangs = Hangs(worker_timeout, notice)
        self._paused: set[str] = set()
        self._spread = 0
        self._held: dict[Key, Future[Any]] = {}
        with suppress(TimeoutError):  # of a worker that hangs; it will be given up
            client.run(_import_torch, wait=False, on_error="ignore", callback_timeout=ANSWER_SECONDS)

    def spread(self, job: Job, one_by_one: bool = False, ranks: int = 1) -> Job:
        """The job with a block for each worker there is now, or each so many; who came or went moves the data."""
        workers = usable_workers(self.client)
        if workers != self.workers:
            self.forget()
            self.workers = workers
        partitions = job.plan.partitions
        plan = (
            RoundPlan(partitions, partitions, True)
            if one_by_one
            else RoundPlan.over(partitions, max(1, len(workers) // ranks))
        )
        return replace(job, plan=plan)

    def forget(self) -> None:
        """Begin anew: other keys, no data held. Futures are dropped, for cancelling would cut the connection."""
        self._spread += 1
        self._held = {}
        self.workers = []

    def homes(self, blocks: int) -> list[str]:
        """The worker that each block prefers."""
        return [self.workers[block % len(self.workers)] for block in range(blocks)]

    def key(self, job: Job, kind: str, round: int, block: int = 0) -> Key:
        """The key of a task of this spread."""
        return kind, f"{job.attempt.token}-{self._spread}-{job.plan.blocks}", round, block

    def shared(self, job: Job) -> Future[Any]:
        """The job itself, sent once."""
        return self._hold(self.key(job, f"job-{job.attempt.executor}", 0), _itself, job)

    def data(self, job: Job, round: int, load: Callable[..., Any]) -> list[Future[Any]]:
        """The examples of each block in a round, loaded so; those of the present and the former split are held."""
        shared, number = self.shared(job), job.split(round)
        keys = [self.key(job, "data", number, block) for block in range(job.plan.blocks)]
        token = keys[0][1]
        self._held = {
            k: f for k, f in self._held.items() if k[1] == token and (k[0] != "data" or k[2] >= number - 1)
        }
        return [self._hold(key, load, shared, number, key[3]) for key in keys]

    def _hold(self, key: Key, function: Any, *arguments: Any) -> Future[Any]:
        """A future that outlives its window."""
        if key not in self._held:
            self._held[key] = self.client.submit(
                step, function, *arguments, key=key, workers=self.homes(key[3] + 1)[-1:], allow_other_workers=True
            )
        return self._held[key]

    def look(self, job: Job | None = None) -> bool:
        """Tell of workers that were lost or are paused, and of maps that take long; whether any was lost.

        Remembers the partitions that workers died at.
        """
        seen = self._watch.look()
        self._hangs.look(seen.paces)
        for worker in seen.paused.keys() - self._paused:
            memory = seen.paused[worker]
            self.notice(f"worker {worker} is paused by Dask: it uses {memory} of memory; give workers more")
        self._paused = set(seen.paused)
        for lost in seen.lost:
            self.deaths.update({partition for _, partition in _parts(job, lost.working, PLACED)})
            again = _parts(job, (*lost.working, *lost.finished), ("map", "turn", "turns"))
            of = "turn" if job and isinstance(job.work.algorithm.when, Asynchronous) else "round"
            self.notice(lost_line(lost, [number for number, _ in again], [part for _, part in again], of))
        return bool(seen.lost)

    def suspects(self) -> str:
        """The partitions at which workers died most often, by `deaths`, as the beginning of a line."""
        most = max(self.deaths.values(), default=0)
        at = listed(partition for partition, deaths in self.deaths.items() if deaths == most)
        return f"workers died at partition {at}: " if most else ""


def _parts(job: Job | None, keys: Iterable[Any], kinds: tuple[str, ...]) -> list[tuple[int, int]]:
    """The (round or turn, partition) of an attempt's tasks of some kinds; of examples, the number of a split."""
    if job is None:
        return []
    ours = [key for key in keys if key[0] in kinds and key[1].startswith(f"{job.attempt.token}-")]
    spans = [replace(job.plan, blocks=_blocks(job, key)).span(key[3]) for key in ours]
    return [(key[2], partition) for key, span in zip(ours, spans, strict=True) for partition in span]


def _blocks(job: Job, key: Key) -> int:
    """Into how many blocks the partitions were cut for a task; a turn is of a partition alone."""
    return job.plan.partitions if key[0] == "turn" else int(key[1].rpartition("-")[2])


def _itself(value: Any) -> Any:
    return value


async def _import_torch() -> None:
    """Being found on a worker is all that it is for: importing this module there takes a second or two."""
