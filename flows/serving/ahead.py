"""Starts what a configuration needs: an executor, and for a flow Prefect's server beside it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager

from roundweave.flows.config.train import Location
from roundweave.flows.reporting.listening import notice
from roundweave.flows.serving.server import prefect_api, prefect_server
from roundweave.storage.errors import ClusterError, UsageError
from roundweave.storage.places.base import Where, full_address
from roundweave.storage.places.schemes import place_of
from roundweave.tasks.data.placement import ANYWHERE, Placement
from roundweave.tasks.executors.base import EXECUTORS, Executor, open_executor


@contextmanager
def ahead(config: Location, placement: Placement = ANYWHERE) -> Iterator[Executor]:
    """Start an executor and a Prefect server at once, for what is `reachable` later.

    The configuration is resolved before, so that a wrong one is reported at once.
    """
    place_of(config.root).make()
    with prefect_server(config.root), started(config, placement) as executor:
        yield executor


@contextmanager
def reachable(root: Where) -> Iterator[None]:
    """Have Prefect report to the user's API, or to the root's server once it answers.

    If that does not start, a notice says so and flow runs report nothing.
    """
    with ExitStack() as stack:
        try:
            stack.enter_context(prefect_api(root))
        except ClusterError as error:
            notice(f"{error}; nothing is reported")
        yield


def started(
    config: Location, placement: Placement = ANYWHERE, store: str | None = None
) -> AbstractContextManager[Executor]:
    """Start the executor of a configuration, for partitions of a placement.

    `store` is the run that it only reads; by default it writes runs below the root. Raises `UsageError` for
    places without a cluster.
    """
    if placement.stays and not EXECUTORS[config.executor].distributed:
        advice = "name their --scheduler, and not --executor inline"
        raise UsageError(f"a partition of a {placement.kind} is mapped by workers there: {advice}")
    store = store or full_address(config.root)
    return open_executor(config.executor, **config.placed, placement=placement, store=store)
