"""Metrics as torchmetrics has them (1.9): updated a batch at a time, and merged by their own rules.

Nothing of torchmetrics is imported: what is a metric is told by what it can do.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch

from storage.errors import ModelError, failing_as, one_line
from tasks.networks.unofficial import count_updates
from tasks.user_code import Code

Kept = Mapping[str, torch.Tensor | list[torch.Tensor]]
"""The state of a metric: plain tensors, for its class may be the user's own, which is not known everywhere."""


def metric_of(score: str | Code) -> Any:
    """A new metric where a score is one, or a function without parameters that makes one; else None."""
    if isinstance(score, str):
        return None
    found = score.load()
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        found = found()
    if isinstance(found, type) or not all(hasattr(found, name) for name in ("update", "compute", "merge_state")):
        return None
    metric: Any = copy.deepcopy(found)
    metric.distributed_available_fn = bool  # never: among ranks it would wait for all of them to compute it
    metric.reset()
    return metric


def updated(score: Code, outputs: torch.Tensor, targets: torch.Tensor) -> Kept:
    """The state of a new metric that has seen outputs (examples, *) and targets (examples, *)."""
    metric = metric_of(score)
    metric.update(outputs, targets)
    # A view would be sent with all that it is a view of.
    return {
        name: [part.clone() for part in kept] if isinstance(kept, list) else kept.clone()
        for name, kept in metric.metric_state.items()
    }


def merged(score: Code, states: Sequence[Kept]) -> float:
    """What a metric gives for the states of batches in their order."""
    metric = metric_of(score)
    count_updates(metric, len(states))
    for state in reversed(states):  # what is merged comes before what is there
        metric.merge_state(state)
    return _number(score, metric.compute())


def check_merging(score: Code, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Raise `ModelError` where batches of outputs (examples, *) do not merge to what all of them at once give."""
    metric = metric_of(score)
    metric.update(outputs, targets)
    once = _number(score, metric.compute())
    size = 1 + len(outputs) // 3
    batches = zip(outputs.split(size), targets.split(size), strict=True)
    with failing_as(lambda error: _unmerged(score, one_line(error))):
        apart = merged(score, [updated(score, *batch) for batch in batches])
    same = math.isclose(once, apart, rel_tol=1e-3, abs_tol=1e-6)
    if not (same or (math.isnan(once) and math.isnan(apart))):
        raise _unmerged(score, f"apart they give {apart:.4g}, at once {once:.4g}")


def _unmerged(score: Code, reason: str) -> ModelError:
    return ModelError(
        f"score {score.reference} is a metric whose batches cannot be merged: {reason}; "
        "give a function of outputs and targets that returns what the metric gives for all of them"
    )


def _number(score: Code, found: object) -> float:
    if not isinstance(found, torch.Tensor) or found.numel() != 1:
        what = f"a tensor {tuple(found.shape)}" if isinstance(found, torch.Tensor) else type(found).__name__
        raise ModelError(f"score {score.reference} must compute one number, not {what}; choose its average")
    return found.item()


def size_of(kept: Kept) -> int:
    """The bytes of a metric's state."""
    return sum(part.nbytes for each in kept.values() for part in (each if isinstance(each, list) else [each]))
