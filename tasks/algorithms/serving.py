"""The named algorithms with a parameter server, a function each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from tasks import options as option
from tasks.algebra import Algorithm
from tasks.algorithms.averaging import fed_avg
from tasks.applies.adaptive import Adagrad
from tasks.applies.schedules import Schedule
from tasks.applies.sgd import Sgd
from tasks.maps.downpour import Downpour
from tasks.maps.elastic import Elastic
from tasks.maps.gradient import Gradient
from tasks.maps.local_steps import LocalSteps
from tasks.options import extending
from tasks.reduces.mean import Mean
from tasks.when import Asynchronous


def async_sgd(
    *,
    lr: option.LearningRate = 0.1,
    momentum: option.Momentum = 0.0,
    nesterov: option.Nesterov = False,
    lr_schedule: option.LearningRateSchedule = "constant",
    warmup: option.Warmup = 0,
    batch_size: option.BatchSize = 32,
    fetch_every: option.FetchEvery = 1,
    max_staleness: option.MaxStaleness = None,
    stale: option.Stale = "drop",
) -> Algorithm:
    """Asynchronous SGD: each gradient is applied by a parameter server as it arrives (Zhang et al. 2016)."""
    server = Sgd(lr, momentum, nesterov, Schedule(lr_schedule, warmup))
    when = Asynchronous(max_staleness, fetch_every, 1, stale)
    return Algorithm(Gradient(batch_size), Mean(), server, when)


def downpour(
    *,
    lr: option.LearningRate = 0.05,
    lr_schedule: option.LearningRateSchedule = "constant",
    warmup: option.Warmup = 0,
    batch_size: option.BatchSize = 32,
    fetch_every: option.FetchEvery = 1,
    push_every: option.PushEvery = 1,
    outer_lr: option.OuterLearningRate = 0.02,
    outer_lr_schedule: option.OuterSchedule = "constant",
    tau: option.Adaptivity = 0.1,
    max_staleness: option.MaxStaleness = None,
    stale: option.Stale = "drop",
) -> Algorithm:
    """Downpour SGD: replicas push sums of gradients to a server with Adagrad (Dean et al. 2012, Algorithm 1)."""
    when = Asynchronous(max_staleness, fetch_every, push_every, stale, fetch_drops_carry=True)
    carries = fetch_every > push_every
    replica = Downpour(push_every, batch_size, lr, carries, Schedule(lr_schedule, warmup))
    return Algorithm(replica, Mean(), Adagrad(outer_lr, 0.0, tau, Schedule(outer_lr_schedule)), when)


def easgd(
    *,
    lr: option.LearningRate = 0.1,
    momentum: option.Momentum = 0.0,
    nesterov: option.Nesterov = False,
    lr_schedule: option.LearningRateSchedule = "constant",
    warmup: option.Warmup = 0,
    local_steps: option.LocalSteps = 10,
    batch_size: option.BatchSize = 32,
    elasticity: option.Elasticity = None,
    max_staleness: option.MaxStaleness = None,
    stale: option.Stale = "drop",
) -> Algorithm:
    """Elastic averaging SGD: partitions and server draw each other (Zhang et al. 2015, Algorithm 1)."""
    averaging = fed_avg(
        lr=lr,
        momentum=momentum,
        nesterov=nesterov,
        lr_schedule=lr_schedule,
        warmup=warmup,
        local_steps=local_steps or 10,
        batch_size=batch_size,
    )
    when = Asynchronous(max_staleness, stale=stale)
    return Algorithm(Elastic(cast(LocalSteps, averaging.map), elasticity), Mean(), Sgd(1.0), when)


@extending(fed_avg, without=("init", "stacked", "match", "match_to", "soft"), reduce="plain_mean")
def fed_buff(
    *,
    buffer: option.Buffer = 2,
    max_staleness: option.MaxStaleness = None,
    stale: option.Stale = "drop",
    **options: Any,
) -> Algorithm:
    """FedBuff: local training, and a server round for each buffer of updates (Nguyen et al. 2022, Algorithm 1).

    The updates of a buffer count the same, with ``--reduce mean`` as much as their partitions have examples. Stale
    updates may be scaled by 1 / (1 + staleness), where the paper takes the root of it.
    """
    return replace(fed_avg(**options), when=Asynchronous(max_staleness, stale=stale, buffer=buffer))
