"""What is used of Dask and is not in its documentation: seen in distributed 2026.8.0, and all of it is here.

The test of this module says what is gone, where a later version has it no more.
"""

from __future__ import annotations

from typing import Any

import distributed.utils
from distributed import Client, SpecCluster

BATCHING_SECONDS = 0.0001
"""How long messages wait to be sent together; Dask's own 5 and 2 ms cost a short round half its time."""


def import_nothing_ahead() -> None:
    """Have the process of which workers are forks import what we say: Dask would add all that it can use."""
    distributed.utils._forkserver_preload_set = True


def begin_workers(cluster: SpecCluster) -> None:
    """Have a cluster begin the workers that it lacks, and raise what its jobs are refused with."""
    cluster.sync(cluster._correct_state)


def send_at_once_to(scheduler: Any, worker: str) -> None:
    """Have a scheduler send to a worker without delay."""
    scheduler.stream_comms[worker].interval = BATCHING_SECONDS


def send_at_once_to_all(scheduler: Any) -> None:
    """The same to all workers and clients that are there."""
    for stream in (*scheduler.stream_comms.values(), *scheduler.client_comms.values()):
        stream.interval = BATCHING_SECONDS


def send_at_once_from(worker: Any) -> None:
    """Have a worker send to its scheduler without delay."""
    worker.batched_stream.interval = BATCHING_SECONDS


def send_at_once_from_client(client: Client) -> None:
    """Have a client send to its scheduler without delay, where it is connected."""
    if client.scheduler_comm is not None:
        client.scheduler_comm.interval = BATCHING_SECONDS
