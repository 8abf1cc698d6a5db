"""What makes Dask's scheduler and workers fit for rounds."""

from __future__ import annotations

import signal
from functools import partial
from typing import Any

from distributed import Client, SchedulerPlugin, WorkerPlugin

from tasks.clusters.unofficial import (
    send_at_once_from,
    send_at_once_from_client,
    send_at_once_to,
    send_at_once_to_all,
)
from tasks.clusters.waiting import on_workers


def dask_setup(worker: Any) -> None:
    """Called in each local worker process: Ctrl-C is for the flow, which then ends its workers in order."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)


class Loosen(SchedulerPlugin):
    """Lets any worker take a task that merely preferred one that is gone.

    A softly placed task that falls due while no worker is there waits for ever in Dask 2026.8: when one joins,
    only the restriction is asked and not that it is loose (`bulk_schedule_unrunnable_after_adding_worker`).
    """

    name = "roundweave-loosen"
    idempotent = True  # several runs, one after the other, may use one scheduler

    async def start(self, scheduler: Any) -> None:
        """Remember the scheduler."""
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
        """Treat the workers and clients that are there already."""
        send_at_once_to_all(scheduler)

    def add_worker(self, scheduler: Any, worker: str) -> None:
        """Treat a worker that joins."""
        send_at_once_to(scheduler, worker)


class PromptWorker(WorkerPlugin):
    """Sends to the scheduler without delay."""

    name = "roundweave-prompt"

    def setup(self, worker: Any) -> None:
        """Treat the worker."""
        send_at_once_from(worker)


def prompt(client: Client) -> None:
    """Have a client and the scheduler of its own local cluster send all messages without delay."""
    client.register_plugin(PromptScheduler())
    on_workers(client, partial(client.register_plugin, PromptWorker()))
    send_at_once_from_client(client)
