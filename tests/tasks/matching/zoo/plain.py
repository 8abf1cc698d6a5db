"""Multilayer perceptrons and what they are put to, and operations that fix the order of the units they see."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks.matching.zoo.registry import Member, member


@member
def mlp() -> Member:
    layers = [nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 12), nn.Tanh(), nn.Linear(12, 5)]
    return nn.Sequential(*layers), (torch.randn(3, 10),)


@member
def tied_autoencoder() -> Member:
    class Autoencoder(nn.Module):
        def __init__(self):
            super().__init__()
            self.weight = nn.Parameter(torch.randn(8, 14) / 4)
            self.hidden_bias = nn.Parameter(torch.zeros(8))
            self.output_bias = nn.Parameter(torch.zeros(14))

        def forward(self, x: Tensor) -> Tensor:
            code = torch.sigmoid(functional.linear(x, self.weight, self.hidden_bias))
            return functional.linear(code, self.weight.t(), self.output_bias)

    return Autoencoder(), (torch.randn(3, 14),)


@member
def zero_head() -> Member:
    model = nn.Sequential(nn.Linear(10, 16), nn.GELU(), nn.Linear(16, 12), nn.GELU(), nn.Linear(12, 5, bias=False))
    nn.init.zeros_(model[-1].weight)
    return model, (torch.randn(3, 10),)


@member
def siamese() -> Member:
    class Siamese(nn.Module):
        def __init__(self):
            super().__init__()
            self.encoder = nn.Sequential(nn.Linear(10, 16), nn.ReLU(), nn.Linear(16, 12))
            self.head = nn.Linear(24, 1)

        def forward(self, left: Tensor, right: Tensor) -> Tensor:
            one, other = self.encoder(left), self.encoder(right)
            return self.head(torch.cat([(one - other).abs(), one * other], dim=1))

    return Siamese(), (torch.randn(3, 10), torch.randn(3, 10))


# Operations that fix the order of the units they see


class BetweenLinears(nn.Module):
    def __init__(self, operation: Callable[[Tensor], Tensor]):
        super().__init__()
        self.operation = operation
        self.free, self.fixed, self.head = nn.Linear(10, 12), nn.Linear(12, 16), nn.Linear(16, 5)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.operation(self.fixed(torch.relu(self.free(x)))))


@member
def sorted_units() -> Member:
    return BetweenLinears(lambda x: torch.sort(x, dim=-1).values), (torch.randn(3, 10),)


@member
def rolled_units() -> Member:
    return BetweenLinears(lambda x: x + torch.roll(x, 1, dims=-1)), (torch.randn(3, 10),)
