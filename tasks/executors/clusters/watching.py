"""Looks at Dask's workers while they work, and notices lost workers, silent ones and stragglers."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import astuple, dataclass
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

from dask.utils import format_bytes
from distributed import Client, Status, get_worker
from distributed.scheduler import heartbeat_interval

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.clusters.workers import LOOK_SECONDS, on_scheduler
from roundweave.tasks.rounds.timing import Timing, timing

METRIC = "roundweave"
"""The name of the maps' timing in workers' heartbeats."""

END_SECONDS = 10
"""The longest time to wait for a nanny to end its worker; afterwards the worker is removed in any case."""


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
    silent: float | None = None
    partition: int | None = None
    memory: str = ""


@dataclass(frozen=True)
class Seen:
    """The result of a look at the workers.

    `paused` has workers to which Dask gives no tasks, as their memory is short, with the memory in use.
    """

    timings: tuple[Timing, ...]
    lost: tuple[Lost, ...]
    paused: dict[str, str]


class Watch:
    """Watches a scheduler's workers, and gives up those without a heartbeat for `worker_timeout` seconds."""

    def __init__(self, client: Client, worker_timeout: float) -> None:
        self.client = client
        self.worker_timeout = worker_timeout
        self._since: float = _began.pop(client, 0.0) or on_scheduler(client, _now)
        self._all_paused = 0.0
        self._silence: dict[str, tuple[float, float]] = {}
        self._given_up: dict[str, float] = {}
        self._last: dict[str, tuple[float, Any, int]] = {}

    def look(self) -> Seen:
        """Look at the workers: what has happened since the last look, or since the run began; see `begin_run`.

        A look adds at most a second to a worker's silence, so that no worker is given up because this process was
        suspended. Raises `ClusterError` if the scheduler is gone, or all workers were paused for `worker_timeout`
        seconds.
        """
        now, heartbeats, paused, gone = on_scheduler(self.client, _census, self._since)
        passed, self._since = min(now - self._since, LOOK_SECONDS), now
        before, self._silence = self._silence, {}
        self._last |= heartbeats
        for worker, (heartbeat, *_) in heartbeats.items():
            last, silent = before.get(worker, (None, 0.0))
            self._silence[worker] = (heartbeat, silent + passed if last == heartbeat else 0.0)
        self._all_paused = self._all_paused + passed if paused and len(paused) == len(heartbeats) else 0.0
        if self._all_paused >= self.worker_timeout:
            raise ClusterError(
                f"every worker has been paused by Dask for {self._all_paused:.0f} s, as its memory is short; give "
                "workers more memory, or fewer partitions each, and start again"
            )
        # With many workers, Dask makes each of them send heartbeats less often.
        limit = max(self.worker_timeout, 10 * heartbeat_interval(len(heartbeats)))
        silent_for = {worker: seconds for worker, (_, seconds) in self._silence.items() if seconds >= limit}
        if silent_for:
            self._given_up |= silent_for
            on_scheduler(self.client, _give_up, list(silent_for))
        lost = tuple(self._lost(*each) for each in gone)
        return Seen(tuple(Timing(*values) for _, values, _ in heartbeats.values() if values), lost, paused)

    def _lost(self, worker: str, working: tuple[Hashable, ...], finished: tuple[Hashable, ...], used: int) -> Lost:
        _, values, limit = self._last.pop(worker, (0.0, None, used))
        memory = f"{format_bytes(used)} of {format_bytes(limit)}" if used else ""
        silent, at = self._given_up.pop(worker, None), Timing(*values or ()).partition
        return Lost(worker, working, finished, silent, at, memory)


_began: WeakKeyDictionary[Client, float] = WeakKeyDictionary()
"""When a client's run began that is not watched yet, by the scheduler's clock."""


def begin_run(client: Client) -> None:
    """Have the next `Watch` report workers that are lost from now on. Raises `ClusterError`."""
    _began[client] = on_scheduler(client, _now)


def report_timing() -> None:
    """Make this worker's heartbeats report the timing of its maps."""
    worker = get_worker()
    if METRIC not in worker.metrics:
        worker.metrics = worker.metrics | {METRIC: lambda worker: astuple(timing())}


def _now() -> float:
    """Runs on the scheduler: the time."""
    return time.time()


def _census(
    since: float, dask_scheduler: Any
) -> tuple[float, dict[str, tuple[float, Any, int]], dict[str, str], list[Any]]:
    """Runs on the scheduler: the time, heartbeats with timings, paused workers, and workers lost since a time.

    A heartbeat also has the worker's limit of memory, and a lost worker what it used if that was too much.
    """
    workers = dask_scheduler.workers
    heartbeats = {a: (s.last_seen, s.metrics.get(METRIC), s.memory_limit) for a, s in workers.items()}
    paused = {
        address: f"{format_bytes(state.metrics['memory'])} of {format_bytes(state.memory_limit)}"
        for address, state in workers.items()
        if state.status is Status.paused
    }
    recent = takewhile(lambda event: event[0] > since, reversed(dask_scheduler.get_events("all")))
    ended = dask_scheduler.get_events("worker-restart-memory")  # by nannies
    used = {event["worker"]: event["rss"] for at, event in ended if at > since - END_SECONDS}
    lost = [
        (e["worker"], tuple(e["processing-tasks"]), tuple(e["lost-computed-tasks"]), used.get(e["worker"], 0))
        for _, e in recent
        if e["action"] == "remove-worker" and not e["expected"]
    ]
    return time.time(), heartbeats, paused, lost[::-1]


async def _give_up(workers: list[str], dask_scheduler: Any) -> None:
    """Runs on the scheduler: ends workers, whose nannies restart them; their tasks go to other workers."""
    await dask_scheduler.restart_workers(
        workers, timeout=END_SECONDS, wait_for_workers=False, on_error="return", stimulus_id="roundweave-silent"
    )
