"""The forward, backward and SGD steps that all maps use."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import torch
from torch import nn

from tasks.data.examples import Examples


class Minimised(Protocol):
    """Anything with a loss of a network's outputs, such as an objective."""

    def value(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The loss, (), or for several stacked networks one each, (network,)."""
        ...


def backprop(objective: Minimised, network: nn.Module, batch: Examples) -> torch.Tensor:
    """Do a forward and a backward pass on a batch; adds to the parameters' gradients and returns the loss."""
    loss = objective.value(network(batch.inputs), batch.targets)
    (loss.sum() if loss.ndim else loss).backward()  # summing a single number would take a tenth of a short step
    return loss.detach()


@torch.no_grad()
def descend(parameters: Sequence[nn.Parameter], lr: float) -> None:
    """Take a step of plain SGD and clear the gradients."""
    for parameter in parameters:
        if parameter.grad is not None:
            parameter.add_(parameter.grad, alpha=-lr)
            parameter.grad = None
