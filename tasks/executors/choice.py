"""The executors by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tasks.executors.base import Executor


@contextmanager
def open_executor(name: str, scheduler: str | None, workers: int) -> Iterator[Executor]:
    """`inline`, or `graph` on a Dask cluster (see `tasks.clusters`), which alone imports Dask."""
    if name == "inline":
        from tasks.executors.inline import InlineExecutor

        yield InlineExecutor()
        return
    from tasks.clusters.connecting import connect
    from tasks.executors.graph import GraphExecutor

    with connect(scheduler, workers) as client:
        yield GraphExecutor(client)
