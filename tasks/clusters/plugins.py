"""What makes Dask's scheduler, workers and client fit for rounds.

All that is used of Dask and is not in its documentation is here, as seen in distributed 2026.8.0. The test of this
module says what is gone, where a later version has it no more.
"""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

import distributed.utils
from distributed import Client, SchedulerPlugin, SpecCluster, WorkerPlugin

from tasks.clusters.workers import on_workers

BATCHING_SECONDS = 0.0001
"""How long messages wait to be sent together; Dask's own 5 and 2 ms cost a short round half its time."""


def dask_setup(worker: Any) -> None:
    """Called in each local worker process: Ctrl-C is for the flow, which then ends its workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def import_nothing_ahead() -> None:
    """Have the process of which workers are forks import what we say: Dask would add all that it can use."""
    distributed.utils._forkserver_preload_set = True


def begin_workers(cluster: SpecCluster) -> None:
    """Have a cluster begin the workers that it lacks, and raise what its jobs are refused with."""
    cluster.sync(cluster._correct_state)


class Loosen(SchedulerPlugin):
    """Lets any worker take a task that merely preferred one that is gone.

    A softly placed task that falls due while no worker is there waits for ever in Dask 2026.8: when one joins,
    only the restriction is asked and not that it is loose (`bulk_schedule_unrunnable_after_adding_worker`).
    """

    name = "roundweave-loosen"
    idempotent = True  # several runs, one after the other, may use one scheduler

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Drop the preference of a task that found no worker."""
        task = self.scheduler.tasks.get(key)
        if finish == "no-worker" and task is not None and task.loose_restrictions:
            task.worker_restrictions = task.host_restrictions = None


class PromptScheduler(SchedulerPlugin):
    """Sends to workers and clients without delay."""

    name = "roundweave-prompt"

    async def start(self, scheduler: Any) -> None:
        _send_at_once(*scheduler.stream_comms.values(), *scheduler.client_comms.values())

    def add_worker(self, scheduler: Any, worker: str) -> None:
        _send_at_once(scheduler.stream_comms[worker])


class PromptWorker(WorkerPlugin):
    """Sends to the scheduler without delay."""

    name = "roundweave-prompt"

    def setup(self, worker: Any) -> None:
        _send_at_once(worker.batched_stream)


def prompt(client: Client) -> None:
    """Have a client and the scheduler of its own local cluster send all messages without delay."""
    client.register_plugin(PromptScheduler())
    on_workers(client, partial(client.register_plugin, PromptWorker()))
    if client.scheduler_comm is not None:
        _send_at_once(client.scheduler_comm)


def _send_at_once(*streams: Any) -> None:
    for stream in streams:
        stream.interval = BATCHING_SECONDS
