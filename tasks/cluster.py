"""Where Dask comes from: a local cluster, an address, a scheduler file, or the client that is there already."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster, SchedulerPlugin, WorkerPlugin, wait
from distributed.client import FuturesCancelledError
from distributed.scheduler import NoValidWorkerError

from storage.errors import ClusterError

CONNECT_SECONDS = 10
WORKER_SECONDS = 60
PATIENCE_SECONDS = 5
"""How long to wait for a scheduler to answer, for a worker to be there, and before asking how a task is doing."""

GIB = str(1 << 30)
WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    # The nanny's default returns memory to the system after every step, which costs 1.2 to 1.6 times the time.
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), GIB),
}
LOCAL_SETTINGS = {
    "distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT,
    # What goes wrong reaches the client as an error; the log would add tracebacks of what is then done again.
    "distributed.logging.distributed": "critical",
    # This module, for `dask_setup`.
    "distributed.worker.preload": ["tasks.cluster"],
    # A worker that dies again within this time of its last death would be dropped for good.
    "distributed.deploy.lost-worker-timeout": "1d",
    "distributed.scheduler.allowed-failures": 5,
    # A worker that fetches from one that was just killed tries for this long.
    "distributed.comm.timeouts.connect": "10s",
}


def dask_setup(worker: Any) -> None:
    """Called in each local worker process: Ctrl-C is for the flow, which then ends its workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class LostWork(Exception):
    """Dask gave up or forgot a task; the store still has all that was committed."""


class Loosen(SchedulerPlugin):
    """Lets any worker take a task that merely preferred one that is gone.

    A softly placed task that falls due while no worker is there waits for ever in Dask 2026.8: when one joins,
    only the restriction is asked and not that it is loose (`bulk_schedule_unrunnable_after_adding_worker`).
    """

    name = "roundweave-loosen"

    async def start(self, scheduler: Any) -> None:
        """Remember the scheduler."""
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Drop the preference of a task that found no worker."""
        task = self.scheduler.tasks.get(key)
        if finish == "no-worker" and task is not None and task.loose_restrictions:
            task.worker_restrictions = task.host_restrictions = None


BATCHING_SECONDS = 0.0001
"""How long messages wait to be sent together; Dask's own 5 and 2 ms cost a short round half its time."""


class PromptScheduler(SchedulerPlugin):
    """Sends to workers without delay. The interval is an attribute of Dask's, not a setting."""

    name = "roundweave-prompt"

    async def start(self, scheduler: Any) -> None:
        """Treat the workers that are there already."""
        for worker in scheduler.stream_comms:
            self.add_worker(scheduler, worker)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Treat a worker that joins."""
        scheduler.stream_comms[worker].interval = BATCHING_SECONDS


class PromptWorker(WorkerPlugin):
    """Sends to the scheduler without delay."""

    name = "roundweave-prompt"

    def setup(self, worker: Any) -> None:
        """Treat the worker."""
        worker.batched_stream.interval = BATCHING_SECONDS


@contextmanager
def connect(scheduler: str | None, workers: int) -> Iterator[Client]:
    """A client of the scheduler at an address or in a file; else the current client; else a local cluster."""
    if scheduler is not None:
        with _client(scheduler) as client:
            yield _loosened(client)
        return
    current = _current_client()
    if current is not None:
        yield _loosened(current)
        return
    with local_cluster(workers) as cluster, Client(cluster, set_as_default=False) as client:
        client.register_plugin(PromptScheduler())
        client.register_plugin(PromptWorker())
        yield _loosened(client)


@contextmanager
def local_cluster(workers: int) -> Iterator[LocalCluster]:
    """Worker processes of one thread each on this machine."""
    options = {"processes": True, "dashboard_address": ":0", "silence_logs": "CRITICAL", "memory_limit": 0}
    # Some settings are read when the cluster is made, others when a worker is lost.
    with dask.config.set(LOCAL_SETTINGS), LocalCluster(workers, threads_per_worker=1, **options) as cluster:
        yield cluster


def _client(scheduler: str) -> Client:
    place = {"scheduler_file": scheduler} if Path(scheduler).suffix == ".json" else {"address": scheduler}
    if "scheduler_file" in place and not Path(scheduler).is_file():
        raise ClusterError(
            f"no scheduler file {scheduler}; start one with `dask scheduler --scheduler-file {scheduler}`"
        )
    try:
        return Client(**place, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ClusterError(
            f"no Dask scheduler answers at {scheduler} within {CONNECT_SECONDS} s; "
            "start one with `dask scheduler`, or leave --scheduler out for a local cluster"
        ) from error


def _loosened(client: Client) -> Client:
    try:
        client.register_plugin(Loosen())
    except ModuleNotFoundError as error:
        raise ClusterError(
            f"the scheduler has no Roundweave ({error}); install it there, as on the workers"
        ) from error
    return client


def _current_client() -> Client | None:
    try:
        client: Client = Client.current()
    except ValueError:
        return None
    return client if client.status == "running" else None


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
