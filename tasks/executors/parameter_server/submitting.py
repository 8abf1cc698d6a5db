"""How a parameter server's tasks get to Dask: collected, and submitted together as one graph."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from distributed import Future

from roundweave.tasks.executors.on_worker import run_step, step_aside
from roundweave.tasks.executors.pool import Key, WorkerPool
from roundweave.tasks.rounds.job import Job

PRIORITY = {"read": 3, "serve": 3, "version": 3, "commit": 1}
"""Dask's priority by the kind of task, else 0: the tasks that others wait for go first."""


class Submitted:
    """A task on the cluster: its key, and its future once it is submitted."""

    def __init__(self, key: Key) -> None:
        self.key = key
        self.future: Future[Any] | None = None


class DaskSubmitter:
    """Collects tasks until `flush` submits them. The server's own tasks had better run on the worker `home`.

    `blocks` has the block of each partition that computes; one that is drawn gets that of the partition before it.
    """

    def __init__(self, pool: WorkerPool, job: Job) -> None:
        self.pool = pool
        self.job = job
        self.home = pool.workers[0]
        self.blocks: dict[int, int] = {}
        self._homes = pool.homes(job.blocks)
        self._graph: dict[Key, Any] = {}
        self._places: dict[Key, str] = {}
        self._tasks: list[Submitted] = []

    def submit(self, kind: str, number: int, at: Any, function: Callable[..., Any], *arguments: Any) -> Submitted:
        key = self.pool.key(self.job, kind, number, at or 0)
        call, shared = step_aside if kind == "commit" else run_step, self.pool.shared(self.job)
        self._graph[key] = (call, function, shared, *(_known(argument) for argument in arguments))
        block = self.blocks[at[0]] if isinstance(at, tuple) else at
        self._places[key] = self.home if block is None else self._homes[block]
        self._tasks.append(Submitted(key))
        return self._tasks[-1]

    def flush(self) -> None:
        """Submit the tasks that were collected, after which they have futures."""
        futures = self.pool.submit(self._graph, [*self._graph], self._places, lambda key: PRIORITY.get(key[0], 0))
        for task, future in zip(self._tasks, futures, strict=True):
            task.future = future
        self._graph, self._places, self._tasks = {}, {}, []


def _known(argument: Any) -> Any:
    """An argument as Dask gets it: tasks, also in lists, are replaced by their futures or keys."""
    if isinstance(argument, list):
        return [_known(each) for each in argument]
    if isinstance(argument, Submitted):
        return argument.key if argument.future is None else argument.future
    return argument
