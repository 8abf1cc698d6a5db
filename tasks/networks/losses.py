"""Losses: functions to minimise, which are means over the examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from storage.errors import ModelError

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of outputs and targets, both (examples, *).

It gives one number, or one for each example, (examples,).
"""


def mean_squared_error(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Mean over examples and outputs; outputs of shape (examples, 1) may have targets of shape (examples,)."""
    if outputs.numel() != targets.numel():
        raise ModelError(f"outputs of shape {tuple(outputs.shape)} for targets of {tuple(targets.shape)}")
    return functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction=reduction)


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Mean over examples and places of the cross entropy of logits with integer labels.

    Logits (examples, classes) for labels (examples,), or (examples, time, classes) for (examples, time); logits
    (examples, classes, *) for labels (examples, *) are read as torch does.
    """
    if class_axis(outputs, targets) == -1 and targets.ndim > 1:
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    return functional.cross_entropy(outputs, targets, reduction=reduction)


def cross_entropies(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross entropy of each label, (items,), without labels -100, which torch ignores, too."""
    items = cross_entropy(outputs, targets, "none").flatten()
    return items if targets.is_floating_point() else items[targets.flatten() != -100]


def squared_errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The squared error of each output, (items,)."""
    return mean_squared_error(outputs, targets, "none").flatten()


def class_axis(outputs: torch.Tensor, targets: torch.Tensor) -> int | None:
    """The class axis of outputs, (examples, *, classes) or (examples, classes, *), for labels (examples, *).

    None if the outputs have neither shape.
    """
    shape = tuple(outputs.shape)
    if shape[:-1] == tuple(targets.shape):
        return -1
    return 1 if len(shape) > 1 and shape[:1] + shape[2:] == tuple(targets.shape) else None


LOSSES: Mapping[str, Loss] = {"cross_entropy": cross_entropy, "mse": mean_squared_error}

ITEMS: Mapping[str, Loss] = {"cross_entropy": cross_entropies, "mse": squared_errors}
"""The built-in losses without the mean: a number for each label or output."""
