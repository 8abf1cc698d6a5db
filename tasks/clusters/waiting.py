"""Waiting for Dask's work and workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any
from weakref import WeakKeyDictionary

from distributed import Client, Future, KilledWorker, wait
from distributed.client import FuturesCancelledError
from distributed.scheduler import NoValidWorkerError

from storage.errors import ClusterError
from tasks.clusters.watching import ANSWER_SECONDS, LOOK_SECONDS, scheduler_gone
from tasks.rounds.timing import log_notice

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
    """Say how long to wait wherever a client has no workers."""
    _seconds[client] = seconds


def usable_workers(client: Client) -> list[str]:
    """The addresses of the workers, in order; asks for one where there are none.

    Raises `ClusterError` where none comes in time; see `wait_at_most`.
    """
    return _workers(client) or _awaited(client)


def _awaited(client: Client) -> list[str]:
    """The workers, once there are any, which a line says where it takes long."""
    began, seconds, told = time.monotonic(), _seconds.get(client, WORKER_SECONDS), False
    asking = client.submit(int, pure=False)  # clusters that adapt start workers for tasks
    try:
        while not (workers := _workers(client)):
            waited = time.monotonic() - began
            if waited > seconds:
                raise ClusterError(
                    f"the scheduler has no workers after {seconds:g} s; start one with `dask worker ADDRESS`, "
                    "or wait longer with --wait-for-workers"
                )
            if waited > LOOK_SECONDS and not told:
                told = True
                log_notice(f"no worker is there: waiting for one, {seconds:g} s at most (--wait-for-workers)")
            time.sleep(0.1)
    finally:
        asking.release()
    return workers


def _workers(client: Client) -> list[str]:
    # Not client.scheduler_info(): a periodic callback may empty what it returns.
    try:
        return sorted(client.nthreads())
    except (OSError, TimeoutError) as error:
        raise scheduler_gone(error) from error


def on_workers(client: Client, tell: Callable[[], object]) -> None:
    """Have the scheduler tell something to all workers, once more where one dies meanwhile.

    What is told is for workers that come, too. Raises `ClusterError` where the scheduler is gone.
    """
    deadline = time.monotonic() + ANSWER_SECONDS
    while True:
        try:
            tell()
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
    """What a future gives, waited for as `finished` does; what was lost since it was done counts as lost, too."""
    try:
        return finished(client, future, look=look).result()
    except KilledWorker as error:
        raise _deadly(error) from error


def _deadly(error: KilledWorker) -> DeadlyWork:
    return DeadlyWork(f"{error.allowed_failures + 1} {DEADLY}")
