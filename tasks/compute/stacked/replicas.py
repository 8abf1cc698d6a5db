"""Replicas of a network as one batched network, with a loss for each replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import nn
from torch.func import functional_call, vmap

from storage.values.state import State
from tasks.networks.objective import Objective


class Replicas(nn.Module):
    """Several networks of one kind. Trained parameters are (replica, *shape); the replicas share all else."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    @property
    def trained(self) -> dict[str, nn.Parameter]:
        """The trained parameters, (replica, *shape), by their name in a single network."""
        return {name: p for name, p in self.network.named_parameters() if p.requires_grad}

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Map inputs (replica, example, *) to outputs (replica, example, *)."""
        outputs: torch.Tensor = vmap(self._one)(self.trained, inputs)
        return outputs

    def _one(self, trained: Mapping[str, torch.Tensor], inputs: torch.Tensor) -> torch.Tensor:
        outputs: torch.Tensor = functional_call(self.network, dict(trained), (inputs,))
        return outputs


@dataclass(frozen=True)
class Stacked:
    """An objective for `count` replicas at once, each with its own examples."""

    objective: Objective
    count: int

    def network(self, state: State) -> Replicas:
        """New replicas that all start from a state, in training mode."""
        network = self.objective.network(state)
        for parameter in network.parameters():
            if parameter.requires_grad:
                parameter.data = parameter.data.expand(self.count, *parameter.shape).clone()
        return Replicas(network)

    def value(self, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean loss of each replica, (replica,), from outputs and targets (replica, example, *)."""
        losses: torch.Tensor = vmap(self.objective.value)(outputs, targets)
        return losses.view(self.count)
