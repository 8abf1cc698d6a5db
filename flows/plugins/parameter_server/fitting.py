"""What a plan with a parameter server is: its order of arrival, its defaults, and what does not go with it."""

from __future__ import annotations

from dataclasses import replace
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
from roundweave.tasks.algorithms.when import Asynchronous
from roundweave.tasks.executors.base import EXECUTORS

KEPT = "updates:10"
"""The default of `keep`."""

SCORED_PUSHES = 10
"""By default the server's network is scored after so many pushes for each partition that computes at one time."""


def fit(plan: Plan, server: ParameterServer) -> Plan:
    """The plan with a parameter server, and with defaults of its own.

    Raises `UsageError` for what does not go with a server, and for an order that is that of another experiment.
    """
    config, when = plan.config, plan.algorithm.when
    assert not when.together
    in_flight = plan.sampler.size if plan.sampler else config.partitions
    _check(plan, when, in_flight)
    every = config.evaluate_every or max(1, SCORED_PUSHES * in_flight // when.buffer)
    config = config.model_copy(update={"evaluate_every": every, "keep": config.keep or KEPT})
    return replace(plan.fill("algorithm", schedule=Arrivals(_order(plan, server))), config=config)


def _check(plan: Plan, when: Asynchronous, in_flight: int) -> None:
    """Raise `UsageError` for what needs rounds in which all partitions begin together."""
    config, cohort = plan.config, plan.sampler is not None
    if when.buffer > in_flight:
        more = "a larger cohort" if cohort else "more partitions"
        raise UsageError(
            f"a buffer of {when.buffer} is never full: {in_flight} partitions have one update each in it; give a "
            f"smaller buffer or {more}"
        )
    if config.sites and cohort:
        raise UsageError("a server's cohort reads partitions anywhere: leave out sites, or cohort, cohort_by_size")
    if config.deadline:
        raise UsageError("a parameter server waits for nobody; leave deadline out")
    if cohort and when.fetch_every > when.push_every:
        raise UsageError(
            f"a partition of a cohort fetches each time that it is drawn, not every {when.fetch_every} "
            f"steps; give fetch_every {when.push_every}, or leave cohort out"
        )
    for option, given in {
        "resplit_every": config.resplit_every is not None,
        "stacked": config.stacked > 1,
    }.items():
        if given:
            raise UsageError(f"{option} needs rounds in which all partitions begin together; leave it out")
    if config.quorum > 1:
        raise UsageError(f"quorum {config.quorum} needs rounds of all partitions; leave it out")


def _order(plan: Plan, server: ParameterServer) -> Order | None:
    """The order in which updates arrive; None if the workers' speed decides."""
    config, order, speeds = plan.config, server.order or "", server.speeds
    if EXECUTORS[config.executor].distributed:
        if order or speeds:
            raise UsageError("on a cluster updates arrive as they do; order and speeds need executor inline")
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
