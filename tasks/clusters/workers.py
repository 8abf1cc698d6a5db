"""Dask's workers and their work: waiting for them, and who of them is gone, who is silent, and how maps get on."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable
from dataclasses import astuple, dataclass
from itertools import takewhile
from typing import Any
from weakref import WeakKeyDictionary

from dask.utils import format_bytes
from distributed import Client, Future, KilledWorker, Status, get_worker, wait
from distributed.client import FuturesCancelledError
from distributed.scheduler import NoValidWorkerError, heartbeat_interval

from storage.errors import ClusterError
from tasks.rounds.timing import Timing, log_notice, timing

METRIC = "roundweave"
"""The name under which heartbeats of workers report the timing of their maps; and the topic of a run's events."""

UNWATCHED = "a run begins"
"""An event on the scheduler: workers that are lost from then on are reported by the watch that comes next."""

LOOK_SECONDS = 1.0
"""How often to look while work is waited for."""

ANSWER_SECONDS = 60
"""How long a scheduler may take to answer."""

END_SECONDS = 10
"""How long a nanny may take to end its worker, which is then removed all the same."""

WORKER_SECONDS = 600.0
"""How long to wait for a worker to be there, where it is not said: queues take their time."""

IDLE_LOOKS = 10
"""So many looks in a row at which no worker does anything, and work is lost."""

DEADLY = "workers died one after the other at its work; out of memory?"


class LostWork(Exception):
    """Dask gave up or forgot a task; the store still has all that was committed."""


class DeadlyWork(LostWork):
    """Workers died at it, one after the other."""


class Idleness:
    """Counts the looks in a row at which no worker does anything, while work is waited for."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._looks = 0

    def look(self) -> None:
        """Look once; raises `LostWork` after too many, `ClusterError` where there are no workers."""
        usable_workers(self.client)
        self._looks = 0 if any(self.client.processing().values()) else self._looks + 1
        if self._looks == IDLE_LOOKS:
            raise LostWork("no worker is working on it")


_seconds: WeakKeyDictionary[Client, float] = WeakKeyDictionary()


def wait_at_most(client: Client, seconds: float) -> None:
    """Set how long to wait wherever a client has no workers."""
    _seconds[client] = seconds


def usable_workers(client: Client) -> list[str]:
    """The addresses of the workers, in order.

    Where there are none, one is asked for and waited for, which a line says where it takes long. Raises
    `ClusterError` where none comes in time; see `wait_at_most`.
    """
    if workers := sorted(processes(client)):
        return workers
    began, seconds, said = time.monotonic(), _seconds.get(client, WORKER_SECONDS), False
    asking = client.submit(int, pure=False)  # clusters that adapt start workers for tasks
    try:
        while not (workers := sorted(processes(client))):
            waited = time.monotonic() - began
            if waited > seconds:
                raise ClusterError(
                    f"the scheduler has no workers after {seconds:g} s; start one with `dask worker ADDRESS`, "
                    "or wait longer with --wait-for-workers"
                )
            if waited > LOOK_SECONDS and not said:
                said = True
                log_notice(f"no worker is there: waiting for one, {seconds:g} s at most (--wait-for-workers)")
            time.sleep(0.1)
    finally:
        asking.release()
    return workers


def on_workers(client: Client, register: Callable[[], object]) -> None:
    """Register something with all workers, and with those that join later; again where one dies meanwhile.

    Raises `ClusterError` where the scheduler is gone, or a worker does not answer.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            register()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"a worker does not hear what it is told ({error})") from error
            usable_workers(client)
            time.sleep(0.1)


def finished(
    client: Client,
    future: Future[Any],
    unless: Callable[[], bool] = lambda: False,
    look: Callable[[], object] = lambda: None,
) -> Future[Any]:
    """Wait for a future, however long its work takes, or until `unless` says that it does not matter.

    Calls `look` now and then. Raises the task's own error; `LostWork` when Dask gave the work up or forgot it.
    """
    idleness = Idleness(client)
    while future.status == "pending" and not unless():
        try:
            with client.as_current():
                wait([future], timeout=LOOK_SECONDS)
        except TimeoutError:
            look()
            idleness.look()
        except FuturesCancelledError as error:
            raise LostWork("the connection to the scheduler was lost") from error
    if unless() or future.status == "finished":
        return future
    reason = future.exception() if future.status == "error" else None
    if isinstance(reason, KilledWorker):
        raise _deadly(reason) from reason
    if reason is None or isinstance(reason, NoValidWorkerError):
        raise LostWork(str(reason) if reason else "the scheduler forgot it") from reason
    raise reason


def result(client: Client, future: Future[Any], look: Callable[[], object] = lambda: None) -> Any:
    """What a future's task returned, waited for as `finished` does.

    Raises `DeadlyWork`, too, where the value was lost after the task was done and computing it again failed.
    """
    try:
        return finished(client, future, look=look).result()
    except KilledWorker as error:
        raise _deadly(error) from error


def _deadly(error: KilledWorker) -> DeadlyWork:
    return DeadlyWork(f"{error.allowed_failures + 1} {DEADLY}")


@dataclass(frozen=True)
class Lost:
    """A worker that is gone: the keys of the work that it had, and of finished work whose values went with it.

    `silent` is for how many seconds it had sent no heartbeat when it was given up; None where it died of itself.
    """

    worker: str
    working: tuple[Hashable, ...]
    finished: tuple[Hashable, ...]
    silent: float | None = None


@dataclass(frozen=True)
class Seen:
    """What a look has shown; `paused` has the memory in use of workers that get no tasks, as it is short."""

    timings: tuple[Timing, ...]
    lost: tuple[Lost, ...]
    paused: dict[str, str]


class Watch:
    """Looks at a scheduler's workers, and gives up those that are silent for `worker_timeout` seconds."""

    def __init__(self, client: Client, worker_timeout: float) -> None:
        self.client = client
        self.worker_timeout = worker_timeout
        self._since: float = _on_scheduler(client, _watched)
        self._all_paused = 0.0
        self._silence: dict[str, tuple[float, float]] = {}
        self._given_up: dict[str, float] = {}

    def look(self) -> Seen:
        """What has happened since the last look, or at first since the run began; see `begin_run`.

        Silence is counted in looks, of a second at most: while this process sleeps, nobody's time runs out. Raises
        `ClusterError` where the scheduler is gone, or all workers were paused for `worker_timeout` seconds.
        """
        now, heartbeats, paused, gone = _on_scheduler(self.client, _census, self._since)
        passed, self._since = min(now - self._since, LOOK_SECONDS), now
        before, self._silence = self._silence, {}
        for worker, (heartbeat, _) in heartbeats.items():
            last, silent = before.get(worker, (None, 0.0))
            self._silence[worker] = (heartbeat, silent + passed if last == heartbeat else 0.0)
        self._all_paused = self._all_paused + passed if paused and len(paused) == len(heartbeats) else 0.0
        if self._all_paused >= self.worker_timeout:
            raise ClusterError(
                f"every worker has been paused by Dask for {self._all_paused:.0f} s, as its memory is short; give "
                "workers more memory, or fewer partitions each, and start again"
            )
        # With many workers Dask has each of them report more rarely.
        limit = max(self.worker_timeout, 10 * heartbeat_interval(len(heartbeats)))
        silent_for = {worker: seconds for worker, (_, seconds) in self._silence.items() if seconds >= limit}
        if silent_for:
            self._given_up |= silent_for
            _on_scheduler(self.client, _give_up, list(silent_for))
        lost = tuple(
            Lost(worker, working, finished, self._given_up.pop(worker, None)) for worker, working, finished in gone
        )
        return Seen(tuple(Timing(*told) for _, told in heartbeats.values() if told), lost, paused)


def begin_run(client: Client) -> None:
    """Note on the scheduler that a run begins: the next watch reports workers that are lost from now on."""
    client.run_on_scheduler(_begin)


def processes(client: Client) -> dict[str, tuple[str, int]]:
    """Machine and process of each worker, by address; raises `ClusterError` where the scheduler is gone."""
    found: dict[str, tuple[str, int]] = _on_scheduler(client, _processes)
    return found


def _on_scheduler(client: Client, function: Any, *arguments: Any) -> Any:
    """What a function returns that runs on the scheduler; raises `ClusterError` where that is gone."""
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
    """Have the heartbeats of this worker report how its maps get on."""
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
