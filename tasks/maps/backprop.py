"""A step of backprop: the one way by which maps take it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from tasks.data.examples import Examples


class Minimised(Protocol):
    """What has a loss of a network's outputs."""

    def value(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss, (), or one of each of several networks side by side, (network,)."""
        ...


def backprop(objective: Minimised, network: nn.Module, batch: Examples) -> torch.Tensor:
    """Forward and backward pass on a batch: gives the loss, and adds its gradients to those of the parameters."""
    loss = objective.value(network(batch.inputs), batch.targets)
    (loss.sum() if loss.ndim else loss).backward()  # a sum of one number takes a tenth of a short step
    return loss.detach()


@torch.no_grad()
def descend(parameters: Sequence[nn.Parameter], lr: float) -> None:
    """A step of plain SGD, which clears the gradients."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=-lr)
            parameter.grad = None
