"""The named algorithms whose rounds wait for all partitions, a function each."""

from __future__ import annotations

from dataclasses import replace
from typing import Any, cast

from storage.errors import UsageError
from tasks import options as option
from tasks.algebra import Algorithm, Map, Reduce
from tasks.applies.adaptive import Adagrad, Adam, Yogi
from tasks.applies.keep_extras import KeepExtras
from tasks.applies.schedules import Schedule
from tasks.applies.sgd import Sgd
from tasks.maps.gradient import Gradient
from tasks.maps.local_steps import LocalSteps
from tasks.maps.prox import FedProx
from tasks.maps.scaffold import Scaffold
from tasks.matching.search.evidence import By
from tasks.options import extending
from tasks.reduces.matched import Matched, To
from tasks.reduces.table import find_reduce
from tasks.teams.teamed import Teamed


def sync_sgd(
    *,
    lr: option.LearningRate = 0.1,
    momentum: option.Momentum = 0.0,
    nesterov: option.Nesterov = False,
    lr_schedule: option.LearningRateSchedule = "constant",
    warmup: option.Warmup = 0,
    batch_size: option.BatchSize = None,
    reduce: option.ReduceName = "mean",
    ranks: option.Ranks = 1,
    units: option.Units = None,
    hybrid: option.Hybrid = False,
) -> Algorithm:
    """Synchronous SGD: the mean gradient of all partitions, then one step of one machine (Chen et al. 2016)."""
    gradient = _shared(Gradient(batch_size), ranks, units, hybrid)
    return Algorithm(gradient, find_reduce(reduce), Sgd(lr, momentum, nesterov, Schedule(lr_schedule, warmup)))


def _shared(map: Map, ranks: int, units: tuple[str, ...] | None, hybrid: bool) -> Map:
    """The map of so many ranks."""
    if ranks > 1:
        return Teamed(map, ranks, tuple(units or ()), hybrid)
    if units or hybrid:
        raise UsageError("units and hybrid say what ranks share: give ranks, 2 or more")
    return map


def fed_avg(
    *,
    lr: option.LearningRate = 0.1,
    momentum: option.Momentum = 0.0,
    nesterov: option.Nesterov = False,
    lr_schedule: option.LearningRateSchedule = "constant",
    warmup: option.Warmup = 0,
    local_steps: option.LocalSteps = None,
    local_epochs: option.LocalEpochs = None,
    batch_size: option.BatchSize = 32,
    optimizer: option.Optimizer = "SGD",
    optimizer_options: option.OptimizerOptions = None,
    clip_norm: option.ClipNorm = None,
    init: option.Init = "shared",
    stacked: option.Stacked = 1,
    outer_lr: option.OuterLearningRate = 1.0,
    outer_momentum: option.OuterMomentum = 0.0,
    outer_nesterov: option.OuterNesterov = False,
    outer_lr_schedule: option.OuterSchedule = "constant",
    reduce: option.ReduceName = "mean",
    match: option.Match = None,
    match_to: option.MatchTo = None,
    soft: option.Soft = None,
    ranks: option.Ranks = 1,
    units: option.Units = None,
    hybrid: option.Hybrid = False,
) -> Algorithm:
    """Federated averaging: local training, then the mean of the networks (McMahan et al. 2017, Algorithm 1).

    One local epoch is the default.
    """
    if local_steps and local_epochs:
        raise UsageError("give local_steps or local_epochs, not both")
    given = {"momentum": momentum, "nesterov": nesterov}
    local = LocalSteps(
        steps=local_steps,
        epochs=local_epochs or (None if local_steps else 1),
        batch_size=batch_size,
        optimizer=optimizer,
        lr=lr,
        options=tuple({**(optimizer_options or {}), **{k: v for k, v in given.items() if v}}.items()),
        clip_norm=clip_norm,
        init=init,
        schedule=Schedule(lr_schedule, warmup),
        stacked=stacked,
    )
    outer = Sgd(outer_lr, outer_momentum, outer_nesterov, Schedule(outer_lr_schedule))
    if ranks > 1 and (clip_norm or local.optimizer in WHOLE):
        what = "clip_norm" if clip_norm else f"optimizer = {local.optimizer}"
        raise UsageError(f"{what} needs all of a network's gradients in one place; leave it out, or ranks")
    reducing = _reduce(reduce, init, match, match_to, soft)
    return Algorithm(_shared(local, ranks, units, hybrid), reducing, outer)


WHOLE = ("Adafactor", "Muon")
"""Optimizers that do not treat each element of a parameter for itself."""


def _reduce(reduce: str, init: str, match: By | None, to: To | None, soft: int | None) -> Reduce:
    if match is None:
        if to is not None or soft is not None:
            raise UsageError("match_to and soft need match: by what the units are compared")
        return find_reduce(reduce)
    own: To = "many" if soft is None else "first"
    return Matched(find_reduce(reduce), match, to=to or (own if init == "per-partition" else "start"), soft=soft)


@extending(
    fed_avg,
    optimizer="AdamW",
    lr=1e-3,
    outer_lr=0.7,
    outer_momentum=0.9,
    outer_nesterov=True,
)
def diloco(**options: Any) -> Algorithm:
    """DiLoCo: many steps of AdamW, outer ones with Nesterov momentum (Douillard et al. 2023, Algorithm 1).

    50 local steps are the default.
    """
    if not (options.get("local_steps") or options.get("local_epochs")):
        options["local_steps"] = 50
    return fed_avg(**options)


@extending(fed_avg, match="weights")
def matched(**options: Any) -> Algorithm:
    """Federated averaging with hidden units matched before the mean (Ainsworth et al. 2023, Algorithm 1).

    They are matched to the round's start, or to one another where each partition began on its own.
    """
    return fed_avg(**options)


@extending(fed_avg, outer_momentum=0.9)
def fed_avgm(**options: Any) -> Algorithm:
    """FedAvgM: federated averaging with momentum on the server (Hsu et al. 2019)."""
    return fed_avg(**options)


OUTER_SGD = ("outer_lr", "outer_momentum", "outer_nesterov", "outer_lr_schedule")


@extending(fed_avg, without=OUTER_SGD)
def fed_adam(
    *,
    outer_lr: option.OuterLearningRate = 0.01,
    outer_lr_schedule: option.OuterSchedule = "constant",
    beta1: option.FirstDecay = 0.9,
    beta2: option.SecondDecay = 0.99,
    tau: option.Adaptivity = 1e-3,
    **options: Any,
) -> Algorithm:
    """FedAdam: federated averaging with Adam on the server (Reddi et al. 2021, Algorithm 2)."""
    outer = Adam(outer_lr, beta1, tau, Schedule(outer_lr_schedule), beta2)
    return replace(fed_avg(**options), apply=outer)


@extending(fed_adam)
def fed_yogi(**options: Any) -> Algorithm:
    """FedYogi: federated averaging with Yogi on the server (Reddi et al. 2021, Algorithm 2)."""
    with_adam = fed_adam(**options)
    return replace(with_adam, apply=Yogi(**vars(with_adam.apply)))


@extending(fed_avg, without=OUTER_SGD)
def fed_adagrad(
    *,
    outer_lr: option.OuterLearningRate = 0.1,
    outer_lr_schedule: option.OuterSchedule = "constant",
    beta1: option.FirstDecay = 0.0,
    tau: option.Adaptivity = 1e-3,
    **options: Any,
) -> Algorithm:
    """FedAdagrad: federated averaging with Adagrad on the server (Reddi et al. 2021, Algorithm 2)."""
    outer = Adagrad(outer_lr, beta1, tau, Schedule(outer_lr_schedule))
    return replace(fed_avg(**options), apply=outer)


SHARES = ("ranks", "units", "hybrid")


@extending(fed_avg, without=("stacked", *SHARES))
def fed_prox(*, mu: option.Proximity = 0.1, **options: Any) -> Algorithm:
    """FedProx: federated averaging whose partitions are held near the start (Li et al. 2020, Algorithm 2)."""
    averaging = fed_avg(**options)
    return replace(averaging, map=FedProx(cast(LocalSteps, averaging.map), mu))


OTHER_THAN_PLAIN_SGD = (
    *("momentum", "nesterov", "optimizer", "optimizer_options", "clip_norm"),
    *("init", "stacked", "match", "match_to", "soft"),
    *SHARES,
)


@extending(fed_avg, without=OTHER_THAN_PLAIN_SGD)
def scaffold(**options: Any) -> Algorithm:
    """SCAFFOLD: federated averaging with control variates (Karimireddy et al. 2020, Algorithm 1, option II)."""
    averaging = fed_avg(**options)
    control = Scaffold(cast(LocalSteps, averaging.map))
    return Algorithm(control, averaging.reduce, KeepExtras(averaging.apply, control.extras))
