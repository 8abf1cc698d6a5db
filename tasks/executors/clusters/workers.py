"""Waits for Dask's workers and for their work."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import CancelledError
from contextlib import contextmanager
from dataclasses import astuple, dataclass
from itertools import takewhile
from math import inf
from typing import Any
from weakref import WeakKeyDictionary

from dask.utils import format_bytes
from distributed import Client, Future, KilledWorker, Status, get_worker, wait
from distributed.scheduler import NoValidWorkerError

from roundweave.storage.errors import ClusterError, MapAbandoned, RoundweaveError, StoreError
from roundweave.tasks.data.splits.placement import ANYWHERE, Placement
from roundweave.tasks.rounds.timing import notify, timing

LOOK_SECONDS = 1.0
"""The seconds between two looks at the workers during a wait."""

ANSWER_SECONDS = 60
"""The longest time to wait for a scheduler's answer."""

WORKER_SECONDS = 600.0
"""The default time to wait for a first worker, which is long, as workers may start in a queue."""

IDLE_LOOKS = 10
"""After so many looks in a row at which no worker is busy, the awaited work counts as lost."""

DEADLY = "workers died one after the other at its work; out of memory?"


class LostWork(Exception):
    """Raised if Dask gave up or forgot a task; the store still has all committed rounds."""


class DeadlyWork(LostWork):
    """Raised if several workers died one after the other at the same task."""


class Idleness:
    """Counts the looks in a row at which no worker is busy, although work is awaited."""

    def __init__(self, client: Client) -> None:
        self.client = client
        self._looks = 0

    def look(self) -> None:
        """Look once. Raises `LostWork` after too many idle looks, and `ClusterError` if there are no workers."""
        usable_workers(self.client)
        self._looks = 0 if any(self.client.processing().values()) else self._looks + 1
        if self._looks == IDLE_LOOKS:
            raise LostWork("no worker is working on it")


@dataclass(frozen=True)
class Waiting:
    """How long to wait for workers that are missing, and of how many partitions' places there must be one."""

    seconds: float = WORKER_SECONDS
    placement: Placement = ANYWHERE
    fewest: float = inf

    def missing(self, workers: Mapping[str, Collection[str]]) -> str:
        """Return what is missing among workers, whose resources are given by address; empty if nothing is."""
        offered = {resource for resources in workers.values() for resource in resources}
        wanted = self.placement.resources
        absent = [resource for resource in wanted if resource not in offered]
        if len(wanted) - len(absent) < min(self.fewest, len(wanted)):
            return f"no worker offers {', '.join(sorted({*absent}))}"
        return "" if workers else "no worker is there"


_waiting: WeakKeyDictionary[Client, Waiting] = WeakKeyDictionary()


def wait_at_most(client: Client, seconds: float, placement: Placement = ANYWHERE, fewest: float = inf) -> None:
    """Set how many seconds to wait whenever a client has no workers, or none at the places of partitions.

    The places of `fewest` partitions must have one, or of all if there are fewer.
    """
    _waiting[client] = Waiting(seconds, placement, fewest)


def usable_workers(client: Client) -> list[str]:
    """Return the addresses of a client's workers that map, in order.

    If there are none, or none with resources that are needed, it asks the cluster for one and waits, with a notice
    if it takes long. Raises `ClusterError` if no such worker comes in time; see `wait_at_most`.
    """
    waiting, began, said = _waiting.get(client, Waiting()), time.monotonic(), False
    asking = None
    try:
        while missing := waiting.missing(workers := offers(client)):
            # An adaptive cluster only starts workers if there is a task.
            asking = asking or (None if workers else client.submit(int, pure=False))
            waited = time.monotonic() - began
            if waited > waiting.seconds:
                at = f" --{waiting.placement.kind} NAME" if waiting.placement.stays else ""
                raise ClusterError(
                    f"{missing} after {waiting.seconds:g} s; start one with `roundweave worker ADDRESS{at}`, or "
                    "wait longer with --wait-for-workers"
                )
            if waited > LOOK_SECONDS and not said:
                said = True
                notify(f"{missing}: waiting for one, {waiting.seconds:g} s at most (--wait-for-workers)")
            time.sleep(0.1)
    finally:
        if asking is not None:
            asking.release()
    return sorted(workers)


def on_workers(client: Client, register: Callable[[], object]) -> None:
    """Call `register`, which registers something with all workers, and again if a worker dies meanwhile.

    Raises `ClusterError` if the scheduler is gone or a worker does not answer.
    """
    until = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            register()
            return
        except OSError as error:
            if time.monotonic() > until:
                raise ClusterError(f"a worker does not answer ({error}); end it, and start again") from error
            usable_workers(client)
            time.sleep(0.1)


@contextmanager
def connected(client: Client) -> Iterator[None]:
    """A context that raises `ClusterError` for whatever Dask raises in it once the scheduler is gone.

    If that is there, and only the connection was cut, it raises `LostWork`.
    """
    try:
        yield
    except (RoundweaveError, LostWork):
        raise
    except Exception as error:
        on_scheduler(client, _now)
        if isinstance(error, CancelledError):  # as all futures are that were known before the cut
            raise LostWork("the connection to the scheduler was lost") from error
        raise


def finished(
    client: Client,
    future: Future[Any],
    unless: Callable[[], bool] = lambda: False,
    look: Callable[[], object] = lambda: None,
) -> Future[Any]:
    """Wait for a future without a time limit, or until `unless` returns True; returns the future.

    Calls `look` about once a second. Raises the task's own error, or `LostWork` if Dask gave up or forgot the
    task, or because of a `StoreError`: it may be the worker alone that does not see the store. Raises
    `ClusterError` if the scheduler is gone.
    """
    idleness = Idleness(client)
    while future.status == "pending" and not unless():
        with connected(client), client.as_current():
            try:
                wait([future], timeout=LOOK_SECONDS)
            except TimeoutError:
                look()
                idleness.look()
    if unless() or future.status == "finished":
        return future
    reason = future.exception() if future.status == "error" else None
    if isinstance(reason, KilledWorker):
        raise _deadly(reason) from reason
    if reason is None or isinstance(reason, NoValidWorkerError | StoreError | MapAbandoned):
        raise LostWork(str(reason) if reason else "the scheduler forgot it") from reason
    raise reason


def result(client: Client, future: Future[Any], look: Callable[[], object] = lambda: None) -> Any:
    """Wait for a future like `finished`, and return its task's value.

    Also raises `DeadlyWork` if the value was lost after the task was done and could not be computed again.
    """
    try:
        return finished(client, future, look=look).result()
    except KilledWorker as error:
        raise _deadly(error) from error


def _deadly(error: KilledWorker) -> DeadlyWork:
    return DeadlyWork(f"{error.allowed_failures + 1} {DEADLY}")


def processes(client: Client) -> dict[str, tuple[str, int]]:
    """Return the machine and process id of each worker by address.

    Raises `ClusterError` if the scheduler is gone.
    """
    places: dict[str, tuple[str, int]] = on_scheduler(client, _processes)
    return places


def on_scheduler(client: Client, function: Any, *arguments: Any) -> Any:
    """Run a function on the scheduler and return its value. Raises `ClusterError` if the scheduler is gone."""
    try:
        return client.run_on_scheduler(function, *arguments, callback_timeout=ANSWER_SECONDS)
    except (OSError, RuntimeError, AttributeError) as error:  # the latter two: the client has closed
        if isinstance(error, AttributeError) and client.scheduler is not None:
            raise  # of the function
        raise ClusterError(
            f"the Dask scheduler is gone ({error}); committed rounds are intact, `roundweave resume` continues"
        ) from error


STORES_ONLY = "roundweave-stores-only"
"""The resource of a worker that stores what others compute, and maps nothing itself."""


def offers(client: Client) -> dict[str, Collection[str]]:
    """Return the names of the resources of each worker that maps, by address."""
    workers: dict[str, Collection[str]] = on_scheduler(client, _resources)
    return {address: names for address, names in workers.items() if STORES_ONLY not in names}


def _resources(dask_scheduler: Any) -> dict[str, list[str]]:
    """Runs on the scheduler: the names of each worker's resources."""
    return {address: list(state.resources) for address, state in dask_scheduler.workers.items()}


def _processes(dask_scheduler: Any) -> dict[str, tuple[str, int]]:
    """Runs on the scheduler: the machine and process id of each worker."""
    return {address: (state.host, state.pid) for address, state in dask_scheduler.workers.items()}


ENDING_SECONDS = 10
"""The longest time to wait for a nanny to end its worker; afterwards the worker is removed in any case."""

METRIC = "roundweave"
"""The name of the maps' timing in workers' heartbeats."""

_began: WeakKeyDictionary[Client, float] = WeakKeyDictionary()
"""When a client's run began that is not watched yet, by the scheduler's clock."""


def begin_run(client: Client) -> None:
    """Note that workers which are lost from now on are those of a run. Raises `ClusterError`."""
    _began[client] = on_scheduler(client, _now)


def began(client: Client) -> float:
    """Return when the client's run began, or else now, by the scheduler's clock. Raises `ClusterError`."""
    return _began.pop(client, 0.0) or float(on_scheduler(client, _now))


def report_timing() -> None:
    """Make this worker's heartbeats report the timing of its maps."""
    worker = get_worker()
    if METRIC not in worker.metrics:
        worker.metrics = worker.metrics | {METRIC: lambda worker: astuple(timing())}


def _now() -> float:
    """Runs on the scheduler: the time."""
    return time.time()


def census(
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
    used = {event["worker"]: event["rss"] for at, event in ended if at > since - ENDING_SECONDS}
    lost = [
        (e["worker"], tuple(e["processing-tasks"]), tuple(e["lost-computed-tasks"]), used.get(e["worker"], 0))
        for _, e in recent
        if e["action"] == "remove-worker" and not e["expected"]
    ]
    return time.time(), heartbeats, paused, lost[::-1]


async def give_up(workers: list[str], dask_scheduler: Any) -> None:
    """Runs on the scheduler: ends workers, whose nannies restart them; their tasks go to other workers."""
    await dask_scheduler.restart_workers(
        workers, timeout=ENDING_SECONDS, wait_for_workers=False, on_error="return", stimulus_id="roundweave-silent"
    )
