"""Waits for Dask's workers and for their work, and notices where work is lost."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Future, KilledWorker, wait
from distributed.client import FuturesCancelledError
from distributed.scheduler import NoValidWorkerError

from roundweave.storage.errors import ClusterError, StoreError
from roundweave.tasks.rounds.timing import notify

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
        """Look once; raises `LostWork` after too many idle looks, and `ClusterError` if there are no workers."""
        usable_workers(self.client)
        self._looks = 0 if any(self.client.processing().values()) else self._looks + 1
        if self._looks == IDLE_LOOKS:
            raise LostWork("no worker is working on it")


_seconds: WeakKeyDictionary[Client, float] = WeakKeyDictionary()


def wait_at_most(client: Client, seconds: float) -> None:
    """Set how many seconds to wait whenever a client has no workers."""
    _seconds[client] = seconds


def usable_workers(client: Client, without: Collection[str] = ()) -> list[str]:
    """The addresses of a client's workers, in order, `without` those that cannot be used.

    If there are none, it asks the cluster for one and waits, with a notice if it takes long. Raises `ClusterError`
    if no worker comes in time; see `wait_at_most`.
    """
    if workers := sorted(processes(client).keys() - without):
        return workers
    began, seconds, said = time.monotonic(), _seconds.get(client, WORKER_SECONDS), False
    asking = client.submit(int, pure=False)  # an adaptive cluster only starts workers if there is a task
    try:
        while not (workers := sorted(processes(client).keys() - without)):
            waited = time.monotonic() - began
            if waited > seconds:
                raise ClusterError(
                    f"the scheduler has no workers after {seconds:g} s; start one with `dask worker ADDRESS`, "
                    "or wait longer with --wait-for-workers"
                )
            if waited > LOOK_SECONDS and not said:
                said = True
                notify(f"no worker is there: waiting for one, {seconds:g} s at most (--wait-for-workers)")
            time.sleep(0.1)
    finally:
        asking.release()
    return workers


def on_workers(client: Client, register: Callable[[], object]) -> None:
    """Call `register`, which registers something with all workers, and again if a worker dies meanwhile.

    Raises `ClusterError` if the scheduler is gone or a worker does not answer.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            register()
            return
        except OSError as error:
            if time.monotonic() > deadline:
                raise ClusterError(f"a worker does not answer ({error}); end it, and start again") from error
            usable_workers(client)
            time.sleep(0.1)


def finished(
    client: Client,
    future: Future[Any],
    unless: Callable[[], bool] = lambda: False,
    look: Callable[[], object] = lambda: None,
) -> Future[Any]:
    """Wait for a future without a time limit, or until `unless` returns True; returns the future.

    Calls `look` about once a second. Raises the task's own error, or `LostWork` if Dask gave up or forgot the
    task, or because of a `StoreError`: it may be the worker alone that does not see the store.
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
    if reason is None or isinstance(reason, NoValidWorkerError | StoreError):
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
    """The machine and process id of each worker by address; raises `ClusterError` if the scheduler is gone."""
    places: dict[str, tuple[str, int]] = on_scheduler(client, _processes)
    return places


def on_scheduler(client: Client, function: Any, *arguments: Any) -> Any:
    """Run a function on the scheduler and return its value; raises `ClusterError` if the scheduler is gone."""
    try:
        return client.run_on_scheduler(function, *arguments, callback_timeout=ANSWER_SECONDS)
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"the Dask scheduler is gone ({error}); committed rounds are intact, `roundweave resume` goes on"
        ) from error


def _processes(dask_scheduler: Any) -> dict[str, tuple[str, int]]:
    """Runs on the scheduler: the machine and process id of each worker."""
    return {address: (state.host, state.pid) for address, state in dask_scheduler.workers.items()}
