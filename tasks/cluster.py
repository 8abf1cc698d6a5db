"""Where Dask comes from: a local cluster, an address, a scheduler file, or the client that is there already."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import dask
from distributed import Client, Future, KilledWorker, LocalCluster
from distributed.client import FutureCancelledError

from storage.errors import ClusterError

CONNECT_SECONDS = 10
WORKER_SECONDS = 60
"""How long to wait for a scheduler to answer, and for a worker to be there."""

GIB = str(1 << 30)
WORKER_ENVIRONMENT = {
    **dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1"),
    # The nanny's default returns memory to the system after every step, which costs 1.2 to 1.6 times the time.
    **dict.fromkeys(("MALLOC_TRIM_THRESHOLD_", "MALLOC_MMAP_THRESHOLD_"), GIB),
}


@contextmanager
def connect(scheduler: str | None, workers: int) -> Iterator[Client]:
    """A client of the scheduler at an address or in a file; else the current client; else a local cluster."""
    if scheduler is not None:
        with _client(scheduler) as client:
            yield client
        return
    current = _current_client()
    if current is not None:
        yield current
        return
    with local_cluster(workers) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def local_cluster(workers: int) -> LocalCluster:
    """Worker processes of one thread each on this machine."""
    with dask.config.set({"distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT}):
        return LocalCluster(
            n_workers=workers,
            threads_per_worker=1,
            processes=True,
            dashboard_address=":0",
            silence_logs="ERROR",
            memory_limit=0,
        )


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


def _current_client() -> Client | None:
    try:
        client: Client = Client.current()
    except ValueError:
        return None
    return client


def usable_workers(client: Client) -> list[str]:
    """The addresses of the workers, in order; raises `ClusterError` for none, or one of several threads."""
    try:
        client.wait_for_workers(1, timeout=WORKER_SECONDS)
    except TimeoutError as error:
        raise ClusterError(
            f"the scheduler has no workers after {WORKER_SECONDS} s; start one: `dask worker ADDRESS --nthreads 1`"
        ) from error
    workers: dict[str, Any] = client.scheduler_info(n_workers=-1)["workers"]
    threaded = [address for address, worker in workers.items() if worker["nthreads"] != 1]
    if threaded:
        raise ClusterError(
            f"worker {threaded[0]} has {workers[threaded[0]]['nthreads']} threads; maps need a process each, "
            "start workers with --nthreads 1 (and --nworkers for more of them)"
        )
    return sorted(workers)


def result_of(client: Client, future: Future[Any]) -> Any:
    """The future's result, however long its work takes, unless the cluster is gone: then `ClusterError`."""
    while True:
        try:
            return future.result(timeout=WORKER_SECONDS / 2)
        except TimeoutError:
            usable_workers(client)
        except KilledWorker as error:
            raise ClusterError(
                f"{error.task} was on {error.allowed_failures + 1} workers that died; out of memory? "
                "Committed rounds are intact: `roundweave resume` goes on"
            ) from error
        except FutureCancelledError as error:
            raise ClusterError(
                f"the scheduler lost the work ({error}); committed rounds are intact: `roundweave resume` goes on"
            ) from error
