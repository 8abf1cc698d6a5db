"""Losses: the mean over examples of how wrong the outputs are."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch
from torch.nn import functional

from storage.errors import ModelError


def mean_squared_error(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over examples and outputs; outputs of shape (examples, 1) may have targets of shape (examples,)."""
    if outputs.numel() != targets.numel():
        raise ModelError(f"outputs of shape {tuple(outputs.shape)} for targets of {tuple(targets.shape)}")
    return functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype))


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean over examples of the cross entropy of logits (examples, classes) with integer labels (examples,)."""
    return functional.cross_entropy(outputs, targets)


Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]


LOSSES: Mapping[str, Loss] = {"cross_entropy": cross_entropy, "mse": mean_squared_error}
