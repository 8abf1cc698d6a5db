"""Scores that are metrics of torchmetrics (1.9), which are updated batch by batch and merge their own states.

Torchmetrics itself is not imported: a metric is recognised by its methods.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from roundweave.storage.errors import ModelError, failing_as, one_line
from roundweave.tasks.own_code.code import Code

Kept = Mapping[str, torch.Tensor | list[torch.Tensor]]
"""A metric's state as plain tensors, as other processes may not know the metric's class."""


def metric_of(score: str | Code) -> Any:
    """A new copy of a metric if the score is one, or a function without parameters that makes one; else None."""
    if isinstance(score, str):
        return None
    value = score.load()
    if inspect.isfunction(value) and not inspect.signature(value).parameters:
        value = value()
    if isinstance(value, type) or not all(hasattr(value, name) for name in ("update", "compute", "merge_state")):
        return None
    metric: Any = copy.deepcopy(value)
    metric.distributed_available_fn = bool  # always False: a metric must not wait for other ranks to compute it
    metric.reset()
    return metric


def updated(score: Code, outputs: torch.Tensor, targets: torch.Tensor) -> Kept:
    """The state of a new metric that has seen outputs (examples, *) and targets (examples, *)."""
    metric = metric_of(score)
    metric.update(outputs, targets)
    # Cloned, since a view would be sent together with the whole tensor behind it.
    return {
        name: [part.clone() for part in value] if isinstance(value, list) else value.clone()
        for name, value in metric.metric_state.items()
    }


def merged(score: Code, states: Sequence[Kept]) -> float:
    """The value of a metric from the states of batches, in their order."""
    metric = metric_of(score)
    count_updates(metric, len(states))
    for state in reversed(states):  # a merged state is put before those already there
        metric.merge_state(state)
    return _number(score, metric.compute())


def count_updates(metric: Any, updates: int) -> None:
    """Set the number of batches that a metric has seen, as merging states into it does not count them."""
    metric._update_count = updates  # without documentation, as of torchmetrics 1.9.0


def check_merging(score: Code, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Raise `ModelError` if merging batches of outputs (examples, *) gives another value than all at once."""
    metric = metric_of(score)
    metric.update(outputs, targets)
    once = _number(score, metric.compute())
    size = 1 + len(outputs) // 3
    batches = zip(outputs.split(size), targets.split(size), strict=True)
    with failing_as(lambda error: _unmerged(score, one_line(error))):
        apart = merged(score, [updated(score, *batch) for batch in batches])
    same = math.isclose(once, apart, rel_tol=1e-3, abs_tol=1e-6)
    if not (same or (math.isnan(once) and math.isnan(apart))):
        raise _unmerged(score, f"the batches give {apart:.4g}, all examples at once {once:.4g}")


def _unmerged(score: Code, reason: str) -> ModelError:
    return ModelError(
        f"score {score.reference} is a metric whose batches cannot be merged: {reason}; "
        "give a function of outputs and targets that returns what the metric gives for all of them"
    )


def _number(score: Code, value: object) -> float:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ModelError(f"score {score.reference} must compute one number, not {what}; choose its average")
    return value.item()


def size_of(kept: Kept) -> int:
    """The size of a metric's state in bytes."""
    return sum(part.nbytes for each in kept.values() for part in (each if isinstance(each, list) else [each]))
