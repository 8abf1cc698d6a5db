"""Opening an executor by its name."""

from __future__ import annotations

import multiprocessing
import sys
from collections.abc import Iterator
from contextlib import contextmanager

from roundweave.tasks.executors.base import EXECUTORS, Executor
from roundweave.tasks.rounds.timing import Notice, log_notice


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
    """Open an executor: `inline` in this process; `graph`, `ranks`, or the better of the two (`auto`) on Dask.

    Dask is imported only for these. `scheduler`, `workers` and `private` are as in
    `clusters.connecting.connect`, which waits up to `wait_for_workers` seconds for a first worker. `notice`
    is called with one line about each map that takes more than `worker_timeout` seconds and much longer than the
    others, and about each worker that is given up, as it sent no heartbeat for so long. With `plain_ranks` the
    ranks may exchange unencrypted data on a cluster whose Dask is encrypted.
    """
    if getattr(multiprocessing.current_process(), "_inheriting", False):
        sys.exit(1)  # a worker that imports a script which trains wherever it is imported; its starter tells why
    if not EXECUTORS[name].distributed:
        from roundweave.tasks.executors.inline import InlineExecutor

        inline = InlineExecutor(worker_timeout, notice)
        try:
            yield inline
        finally:
            inline.end()
        return
    from roundweave.tasks.executors.clusters.connecting import connect
    from roundweave.tasks.executors.graph import GraphExecutor

    with connect(scheduler, workers, private, wait_for_workers) as client:
        if name == "graph":
            yield GraphExecutor(client, worker_timeout, notice)
            return
        from roundweave.tasks.executors.ranks import RanksExecutor

        yield RanksExecutor(client, worker_timeout, notice, choosing=name == "auto", plain=plain_ranks)
