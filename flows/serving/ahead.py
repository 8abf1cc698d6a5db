"""Starts what a configuration needs: an executor, and for a flow Prefect's server beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from roundweave.flows.config.train import Placement
from roundweave.flows.reporting.listening import notice
from roundweave.flows.serving.server import prefect_api, prefect_server
from roundweave.storage.errors import ClusterError, UsageError
from roundweave.storage.places.base import full_address
from roundweave.storage.places.schemes import place_of
from roundweave.tasks.executors.base import EXECUTORS, Executor, open_executor
from roundweave.tasks.own_code.imports import Importing


@contextmanager
def ahead(config: Placement, sites: tuple[str, ...] = ()) -> Iterator[Executor]:
    """Start an executor and a Prefect server at once, for a flow that is run in this context.

    If Prefect's server does not start, a notice says so and the flow reports nothing. The configuration is
    resolved before, so that a wrong one is reported at once.
    """
    place_of(config.root).make()
    with prefect_server(config.root), ExitStack() as stack:
        # Prefect needs `fastapi.encoders` to record a flow's parameters. Both take as long as a cluster's start.
        importing = Importing("prefect.flows", "fastapi.encoders")
        executor = stack.enter_context(started(config, sites))
        importing.join()
        try:
            stack.enter_context(prefect_api(config.root))
        except ClusterError as error:
            notice(f"{error}; nothing is reported")
        yield executor


def started(
    config: Placement, sites: tuple[str, ...] = (), store: str | None = None
) -> AbstractContextManager[Executor]:
    """Start the executor of a configuration, for partitions at these sites, one each.

    `store` is the run that it only reads; by default it writes runs below the root. Raises `UsageError` for sites
    without a cluster.
    """
    if sites and not EXECUTORS[config.executor].distributed:
        raise UsageError(
            "a partition of a site is mapped by workers there: name their --scheduler, and not --executor inline"
        )
    return open_executor(config.executor, **config.placed, sites=sites, store=store or full_address(config.root))
