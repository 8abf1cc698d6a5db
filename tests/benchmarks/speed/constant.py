"""A network of one vector, and examples that ask nothing of it: what rounds cost besides computing."""

from __future__ import annotations

import torch


def model(elements: int = 100) -> torch.nn.Module:
    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(elements))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.weight[0]

    return Constant()


def data(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(2, 1), torch.zeros(2, 1)


CONSTANT = {"model": f"{__file__}:model", "data": f"{__file__}:data"}
"""The fields of a configuration that name them."""
