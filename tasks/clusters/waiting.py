"""Waiting for Dask's work and workers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from distributed import Client, Future, KilledWorker, wait
from distributed.client import FuturesCancelledError
from distributed.scheduler import NoValidWorkerError

from storage.errors import ClusterError

WORKER_SECONDS = 60


PATIENCE_SECONDS = 5
"""How long to wait for a scheduler to answer, for a worker to be there, and before asking how a task is doing."""


class LostWork(Exception):
    """Dask gave up or forgot a task; the store still has all that was committed."""


def usable_workers(client: Client) -> list[str]:
    """The addresses of the workers, in order; raises `ClusterError` for none, or one of several threads."""
    # Not client.scheduler_info(): a periodic callback may empty what it returns.
    deadline = time.monotonic() + WORKER_SECONDS
    while not (threads := _threads(client)):
        if time.monotonic() > deadline:
            raise ClusterError(
                f"the scheduler has no workers after {WORKER_SECONDS} s; start one with `dask worker ADDRESS`"
            )
        time.sleep(0.1)
    for address, count in threads.items():
        if count != 1:
            raise ClusterError(
                f"worker {address} has {count} threads; maps need a process each, "
                "start workers with --nthreads 1 (and --nworkers for more of them)"
            )
    return sorted(threads)


def _threads(client: Client) -> dict[str, int]:
    try:
        threads: dict[str, int] = client.nthreads()
    except (OSError, TimeoutError) as error:
        raise ClusterError(
            f"the Dask scheduler is gone ({error}); committed rounds are intact, `roundweave resume` goes on"
        ) from error
    return threads


def finished(client: Client, future: Future[Any], unless: Callable[[], bool] = lambda: False) -> Future[Any]:
    """Wait for a future, however long its work takes, or until `unless` says that it does not matter.

    Raises the task's own error; `LostWork` when Dask gave the work up or forgot it.
    """
    idle = 0
    while future.status == "pending" and not unless():
        try:
            with client.as_current():
                wait([future], timeout=PATIENCE_SECONDS)
        except TimeoutError:
            usable_workers(client)
            idle = 0 if any(client.processing().values()) else idle + 1
            if idle == 2:
                raise LostWork("no worker is working on it") from None
        except FuturesCancelledError as error:
            raise LostWork("the connection to the scheduler was lost") from error
    if unless() or future.status == "finished":
        return future
    reason = future.exception() if future.status == "error" else None
    if reason is None or isinstance(reason, (KilledWorker, NoValidWorkerError)):
        raise LostWork(_why_lost(reason)) from reason
    raise reason


def _why_lost(reason: BaseException | None) -> str:
    if isinstance(reason, KilledWorker):
        return f"{reason.allowed_failures + 1} workers died one after the other at its work; out of memory?"
    return str(reason) if reason else "the scheduler forgot it"
