"""What becomes of workers while their work is waited for: who is gone, who is silent, and how maps get on."""

from __future__ import annotations

import time
from collections.abc import Hashable
from dataclasses import astuple, dataclass
from itertools import takewhile
from typing import Any

from dask.utils import format_bytes
from distributed import Client, Status, get_worker
from distributed.scheduler import heartbeat_interval

from storage.errors import ClusterError
from tasks.rounds.timing import Timing, timing

METRIC = "roundweave"
"""Under this name the heartbeats of workers tell the timing of their maps, and a scheduler that a run begins."""

UNWATCHED = "a run begins"
"""An event on the scheduler: workers that are lost from then on are told of by the watch that comes next."""

LOOK_SECONDS = 1.0
"""How often to look while work is waited for."""

ANSWER_SECONDS = 60
"""How long a scheduler may take to answer."""

END_SECONDS = 10
"""How long a nanny may take to end its worker, which is then removed all the same."""


@dataclass(frozen=True)
class Lost:
    """A worker that is gone; keys of the work it was at or had before it, and of finished work gone with it.

    `silent` tells in how many seconds without a heartbeat it was given up, None where it died of itself.
    """

    worker: str
    working: tuple[Hashable, ...]
    finished: tuple[Hashable, ...]
    silent: float | None = None


@dataclass(frozen=True)
class Seen:
    """What a look has shown; of workers that take no tasks as their memory is short, how much it is."""

    timings: tuple[Timing, ...]
    lost: tuple[Lost, ...]
    paused: dict[str, str]


class Watch:
    """Looks at a scheduler's workers, and gives up those that are silent for `worker_timeout` seconds."""

    def __init__(self, client: Client, worker_timeout: float) -> None:
        self.client = client
        self.worker_timeout = worker_timeout
        self._since: float = self._ask(_watched)
        self._all_paused = 0.0
        self._silence: dict[str, tuple[float, float]] = {}
        self._given_up: dict[str, float] = {}

    def look(self) -> Seen:
        """What has happened since the last look, at first since a run began; see `begin`.

        Raises `ClusterError` where the scheduler is gone, or all workers were paused for `worker_timeout` seconds.

        Silence is counted in looks, of a second at most: while this process sleeps, nobody's time runs out.
        """
        now, heartbeats, paused, gone = self._ask(_census, self._since)
        passed, self._since = min(now - self._since, LOOK_SECONDS), now
        silence = {
            worker: (heard, self._silence[worker][1] + passed if self._still(worker, heard) else 0.0)
            for worker, (heard, _) in heartbeats.items()
        }
        self._silence = silence
        self._all_paused = self._all_paused + passed if paused and len(paused) == len(heartbeats) else 0.0
        if self._all_paused >= self.worker_timeout:
            raise ClusterError(
                f"every worker has been paused by Dask for {self._all_paused:.0f} s, as its memory is short; give "
                "workers more memory, or fewer partitions each, and start again"
            )
        # With many workers Dask has each of them report more rarely.
        limit = max(self.worker_timeout, 10 * heartbeat_interval(len(silence)))
        silent = {worker: seconds for worker, (_, seconds) in silence.items() if seconds >= limit}
        if silent:
            self._given_up |= silent
            self._ask(_give_up, list(silent))
        lost = tuple(
            Lost(worker, working, finished, self._given_up.pop(worker, None)) for worker, working, finished in gone
        )
        return Seen(tuple(Timing(*told) for _, told in heartbeats.values() if told), lost, paused)

    def _still(self, worker: str, heard: float) -> bool:
        return worker in self._silence and self._silence[worker][0] == heard

    def _ask(self, function: Any, *arguments: Any) -> Any:
        return _asked(self.client, function, *arguments)


def begin(client: Client) -> None:
    """A run begins: the next watch tells of workers that are lost from now on."""
    client.run_on_scheduler(_begin)


def processes(client: Client) -> dict[str, tuple[str, int]]:
    """Machine and process of each worker, by address; raises `ClusterError` where the scheduler is gone."""
    found: dict[str, tuple[str, int]] = _asked(client, _processes)
    return found


def _asked(client: Client, function: Any, *arguments: Any) -> Any:
    """What a function gives on the scheduler."""
    try:
        return client.run_on_scheduler(function, *arguments, callback_timeout=ANSWER_SECONDS)
    except (OSError, TimeoutError) as error:
        raise scheduler_gone(error) from error


def scheduler_gone(error: Exception) -> ClusterError:
    """What to say where a scheduler does not answer."""
    return ClusterError(
        f"the Dask scheduler is gone ({error}); committed rounds are intact, `roundweave resume` goes on"
    )


def report_timing() -> None:
    """On a worker: have its heartbeats tell how its maps get on."""
    worker = get_worker()
    if METRIC not in worker.metrics:
        worker.metrics = worker.metrics | {METRIC: lambda worker: astuple(timing())}


def _begin(dask_scheduler: Any) -> None:
    """On the scheduler: it remembers when a run began that nobody watches yet."""
    dask_scheduler.log_event(METRIC, UNWATCHED)


def _watched(dask_scheduler: Any) -> float:
    """On the scheduler: when the run began that is watched from now on; now where none is said to have begun."""
    told = dask_scheduler.get_events(METRIC)
    dask_scheduler.log_event(METRIC, "a run is watched")
    began, what = told[-1] if told else (0.0, "")
    return float(began) if what == UNWATCHED else time.time()


def _census(
    since: float, dask_scheduler: Any
) -> tuple[float, dict[str, tuple[float, Any]], dict[str, str], list[Any]]:
    """On the scheduler: the time, each worker's heartbeat and timing, who is paused, and who was lost since."""
    workers = dask_scheduler.workers
    heartbeats = {address: (state.last_seen, state.metrics.get(METRIC)) for address, state in workers.items()}
    paused = {
        address: f"{format_bytes(state.metrics['memory'])} of {format_bytes(state.memory_limit)}"
        for address, state in workers.items()
        if state.status is Status.paused
    }
    recent = takewhile(lambda event: event[0] > since, reversed(dask_scheduler.get_events("all")))
    lost = [
        (event["worker"], tuple(event["processing-tasks"]), tuple(event["lost-computed-tasks"]))
        for _, event in recent
        if event["action"] == "remove-worker" and not event["expected"]
    ]
    return time.time(), heartbeats, paused, lost[::-1]


def _processes(dask_scheduler: Any) -> dict[str, tuple[str, int]]:
    """On the scheduler: where each worker is."""
    return {address: (state.host, state.pid) for address, state in dask_scheduler.workers.items()}


async def _give_up(workers: list[str], dask_scheduler: Any) -> None:
    """On the scheduler: end workers, and begin them anew where they have a nanny; their work goes elsewhere."""
    await dask_scheduler.restart_workers(
        workers, timeout=END_SECONDS, wait_for_workers=False, on_error="return", stimulus_id="roundweave-silent"
    )
