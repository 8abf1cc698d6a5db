"""The executors by name."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tasks.executors.base import EXECUTORS, Executor
from tasks.rounds.timing import Notice, log_notice


@contextmanager
def open_executor(
    name: str,
    scheduler: str | None,
    workers: int,
    worker_timeout: float = 60.0,
    notice: Notice = log_notice,
    private: bool = False,
    wait_for_workers: float = 600.0,
    plain_ranks: bool = False,
) -> Iterator[Executor]:
    """`inline`, or `graph`, `ranks`, or what of these two is better (`auto`), on a Dask cluster.

    These import Dask (see `tasks.clusters`).
    A map that takes more than `worker_timeout` seconds and much longer than the others is told of; a worker
    without a heartbeat for so long is given up. Either is told by `notice`. For a first worker it waits so many
    seconds. With `plain_ranks` ranks may talk unencrypted where the cluster does not.
    """
    if not EXECUTORS[name].distributed:
        from tasks.executors.inline import InlineExecutor

        inline = InlineExecutor(worker_timeout, notice)
        try:
            yield inline
        finally:
            inline.end()
        return
    from tasks.clusters.connecting import connect
    from tasks.executors.graph import GraphExecutor

    with connect(scheduler, workers, private, wait_for_workers) as client:
        if name == "graph":
            yield GraphExecutor(client, worker_timeout, notice)
            return
        from tasks.executors.ranks import RanksExecutor

        yield RanksExecutor(client, worker_timeout, notice, choosing=name == "auto", plain=plain_ranks)
