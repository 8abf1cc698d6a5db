"""Partitions sized by the speed of the workers that map them: measured once, and recorded as the run's split."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial

from flows.config.resolving import Resolved, resolve
from flows.config.train import TrainConfig
from flows.recording import recorded_config
from flows.reporting.listening import notice
from tasks.executors.base import Executor
from tasks.networks.speed import BATCH, batches_per_second
from tasks.rounds.plan import RoundPlan

WARM_UP, SECONDS = 0.1, 0.5
"""Seconds of backprop before a worker is measured, and while it is."""

SHOWN_WORKERS = 8


def balanced(resolved: Resolved, executor: Executor) -> Resolved:
    """The same with the split that balance stands for: the recorded one of a run, else by speed."""
    config = resolved.config
    if config.balance is None:
        return resolved
    split = _recorded(config) or _measured(resolved, executor)
    return resolve(config.model_copy(update={"split": split, "balance": None}))


def _recorded(config: TrainConfig) -> str | None:
    """The split of the run that goes on, None where it is new."""
    recorded = recorded_config(config)
    if recorded is None:
        return None
    split = str(recorded.get("split"))
    return split if split.startswith("proportions:") else config.split


def _measured(resolved: Resolved, executor: Executor) -> str:
    """The split by which workers are done with a round at once; as it is where all get the same."""
    config = resolved.config
    assert resolved.objective is not None
    measure = partial(batches_per_second, resolved.objective, resolved.partitions, config.threads)
    # All at once, as they map: what workers share, cores and memory, they share then, too. The first call has each
    # import torch and load the examples, so that at the second all are at the same.
    executor.each(partial(measure, WARM_UP))
    speeds = executor.each(partial(measure, SECONDS))
    plan = RoundPlan.over(config.partitions, len(speeds))
    shares = [f"{share:.2g}" for share in plan.shares(list(speeds.values())[: plan.blocks])]
    split = config.split if len(set(shares)) == 1 else f"proportions:{','.join(shares)}"
    notice(f"partition sizes by measured speed, batches of {BATCH} a second: {_told(speeds)}; split {split}")
    return split


def _told(speeds: Mapping[str, float]) -> str:
    told = [f"{worker} {speed:.1f}" for worker, speed in speeds.items()]
    more = len(told) - SHOWN_WORKERS
    return ", ".join(told[:SHOWN_WORKERS]) + (f" and {more} more" if more > 0 else "")
