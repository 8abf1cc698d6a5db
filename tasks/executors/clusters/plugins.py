"""Plugins and settings that adapt Dask's scheduler, workers and client to short rounds.

Everything that this project uses of Dask without its documentation is here; it works with distributed 2026.8.0.
This module's test fails, and names what is missing, if a later version of Dask no longer has it.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import distributed.utils
from distributed import Client, SchedulerPlugin, SpecCluster, WorkerPlugin

from roundweave.tasks.executors.clusters.workers import on_workers

BATCHING_SECONDS = 0.0001
"""How long messages wait to be sent in a batch.

Dask's defaults of 5 and 2 ms take half the time of a short round.
"""


def import_nothing_ahead() -> None:
    """Stop Dask from adding its own imports to the process from which workers are forked."""
    distributed.utils._forkserver_preload_set = True


def begin_workers(cluster: SpecCluster) -> None:
    """Start the workers that a cluster lacks; raises the error if a job is refused."""
    cluster.sync(cluster._correct_state)


class Loosen(SchedulerPlugin):
    """Lets any worker take a task that only preferred a worker which is gone.

    In Dask 2026.8, a task with a loose restriction that becomes runnable while there is no worker waits for ever:
    `bulk_schedule_unrunnable_after_adding_worker` ignores that its restriction is loose.
    """

    name = "roundweave-loosen"
    idempotent = True  # several runs may use the same scheduler one after the other

    async def start(self, scheduler: Any) -> None:
        self.scheduler = scheduler

    def transition(self, key: Any, start: str, finish: str, *args: Any, **kwargs: Any) -> None:
        """Drop the worker preference of a task for which there is no worker."""
        task = self.scheduler.tasks.get(key)
        if finish == "no-worker" and task is not None and task.loose_restrictions:
            task.worker_restrictions = task.host_restrictions = None


class PromptScheduler(SchedulerPlugin):
    """Makes the scheduler send messages to workers and clients without delay."""

    name = "roundweave-prompt"

    async def start(self, scheduler: Any) -> None:
        _send_at_once(*scheduler.stream_comms.values(), *scheduler.client_comms.values())

    def add_worker(self, scheduler: Any, worker: str) -> None:
        _send_at_once(scheduler.stream_comms[worker])


class PromptWorker(WorkerPlugin):
    """Makes a worker send messages to the scheduler without delay."""

    name = "roundweave-prompt"

    def setup(self, worker: Any) -> None:
        _send_at_once(worker.batched_stream)


def prompt(client: Client) -> None:
    """Make a client, and the scheduler and workers of its own local cluster, send messages without delay."""
    client.register_plugin(PromptScheduler())
    on_workers(client, partial(client.register_plugin, PromptWorker()))
    if client.scheduler_comm is not None:
        _send_at_once(client.scheduler_comm)


def _send_at_once(*streams: Any) -> None:
    for stream in streams:
        stream.interval = BATCHING_SECONDS
