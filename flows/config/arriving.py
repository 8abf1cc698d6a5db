"""What a configuration says about a parameter server: checks, defaults, and the order in which updates arrive."""

from __future__ import annotations

from math import inf
from typing import Any

from flows.config.recorded import differences
from flows.config.train import RECORDED, TrainConfig
from storage.errors import UsageError
from storage.places.addresses import full_address
from storage.runs.run import open_stored
from tasks.algebra import Algorithm
from tasks.asynchronous.orders import Recorded, Seeded
from tasks.executors.base import EXECUTORS
from tasks.when import Asynchronous, Order

KEPT = "updates:10"
"""The default of `keep` for runs with a parameter server."""

SCORED_PUSHES = 10
"""By default the server's network is scored after so many pushes of each partition."""


def with_server(config: TrainConfig, algorithm: Algorithm) -> TrainConfig:
    """Fill in the defaults that depend on whether the algorithm has a parameter server.

    Raises `UsageError` for fields that do not fit the algorithm.
    """
    if not isinstance(algorithm.when, Asynchronous):
        return _without_server(config)
    if algorithm.when.buffer > config.partitions:
        raise UsageError(
            f"a buffer of {algorithm.when.buffer} is never full: {config.partitions} partitions have one update "
            "each in it; give a smaller buffer or more partitions"
        )
    if config.resplit_every is not None:
        raise UsageError("resplit_every needs rounds in which all partitions begin together; leave it out")
    if config.stacked > 1:
        raise UsageError("stacked needs rounds in which all partitions begin together; leave it out")
    if config.quorum > 1:
        raise UsageError(f"quorum {config.quorum} needs rounds of all partitions; leave it out")
    if (config.order or config.speeds) and not EXECUTORS[config.executor].orders_arrivals:
        raise UsageError("on a cluster updates arrive as they do; order and speeds need executor inline")
    _check_speeds(config)
    return _filled(config, evaluate_every=SCORED_PUSHES * config.partitions, keep=KEPT)


def _without_server(config: TrainConfig) -> TrainConfig:
    if config.order or config.speeds:
        raise UsageError("order and speeds are of updates that arrive one by one; choose such an algorithm")
    return _filled(config, evaluate_every=1, keep="all")


def _filled(config: TrainConfig, **defaults: Any) -> TrainConfig:
    """The configuration with these defaults for fields that were not given."""
    return config.model_copy(update={name: getattr(config, name) or value for name, value in defaults.items()})


def _check_speeds(config: TrainConfig) -> None:
    if config.speeds is None:
        return
    if config.order and config.order.startswith(RECORDED):
        raise UsageError("speeds are of a seeded order, and this one is recorded; leave one of them out")
    if len(config.speeds) != config.partitions or not all(0 < speed < inf for speed in config.speeds):
        raise UsageError(f"speeds needs {config.partitions} numbers above 0, one for each partition")


def order_of(config: TrainConfig, algorithm: Algorithm) -> Order | None:
    """The order in which updates arrive at a parameter server.

    None if the workers' speed decides, or the algorithm has no parameter server. Raises `UsageError` if the order
    is that of a recorded run of another experiment.
    """
    if not EXECUTORS[config.executor].orders_arrivals or not isinstance(algorithm.when, Asynchronous):
        return None
    if config.order is None or not config.order.startswith(RECORDED):
        return Seeded(config.seed, config.speeds or ())
    run = open_stored(config.order.removeprefix(RECORDED), config.root)
    if differing := differences(run.config, config.experiment):
        raise UsageError(f"{run.name} is another experiment ({'; '.join(differing)}); its order does not fit")
    return Recorded(full_address(run.address))
