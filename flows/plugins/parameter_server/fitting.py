"""What a plan with a parameter server is: its order of arrival, and what does not go with it."""

from __future__ import annotations

from math import inf

from roundweave.flows.config.recorded import differences
from roundweave.flows.planning.plan import Plan
from roundweave.flows.plugins.parameter_server import ParameterServer
from roundweave.flows.plugins.parameter_server.arrivals import Arrivals
from roundweave.flows.plugins.parameter_server.orders import Order, Recorded, Seeded
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import full_address
from roundweave.storage.runs.names import RECORDED
from roundweave.storage.runs.run import open_stored
from roundweave.tasks.executors.base import EXECUTORS


def fit(plan: Plan, server: ParameterServer) -> Plan:
    """The plan with a parameter server as its schedule.

    Raises `UsageError` for what needs rounds in which all partitions begin together, and for an order that is that
    of another experiment.
    """
    config = plan.config
    if config.resplit_every:
        raise UsageError("resplit_every needs rounds in which all partitions begin together; leave it out")
    if config.quorum > 1:
        raise UsageError(f"quorum {config.quorum} needs rounds of all partitions; leave it out")
    return plan.fill("algorithm", schedule=Arrivals(_order(plan, server)))


def _order(plan: Plan, server: ParameterServer) -> Order | None:
    """The order in which updates arrive; None if the workers' speed decides."""
    config, order, speeds = plan.config, server.order or "", server.speeds
    if EXECUTORS[config.executor].distributed:
        if order or speeds:
            raise UsageError("on a cluster the workers decide the order; order and speeds need executor inline")
        return None
    if not order.startswith(RECORDED):
        right = [speed for speed in speeds or () if 0 < speed < inf]
        if speeds is not None and not len(right) == len(speeds) == config.partitions:
            raise UsageError(f"speeds needs {config.partitions} numbers above 0, one for each partition")
        return Seeded(config.seed, speeds or ())
    if speeds is not None:
        raise UsageError("speeds decide a seeded order, and this order is recorded; leave one of them out")
    run = open_stored(order.removeprefix(RECORDED), config.root)
    if differing := differences(run.config, config):
        raise UsageError(f"{run.name} is another experiment ({'; '.join(differing)}); its order does not fit")
    return Recorded(full_address(run.address))
