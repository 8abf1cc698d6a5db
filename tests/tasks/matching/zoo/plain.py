"""Multilayer perceptrons, recurrent networks, and operations that fix the order of the units they see."""

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
def stack_roll_pad() -> Member:
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs, self.head = nn.Linear(6, 12), nn.Linear(12, 5)
            self.near, self.far, self.early = (nn.Linear(12, 12) for _ in range(3))
            self.weights = nn.Parameter(torch.randn(4, 1))

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.inputs(x))
            far = self.far(torch.roll(x, 1, dims=1))
            early = self.early(functional.pad(x, (0, 0, 1, 0))[:, :-1])
            paths = torch.stack([x, self.near(x), far, early], dim=2)
            return self.head((paths * self.weights).sum(dim=2).relu())

    return Mixed(), (torch.randn(3, 7, 6),)


class LastStep(nn.Module):
    """Reads the states of the last step, or the final one that the recurrent layers give."""

    def __init__(self, recurrent: nn.RNNBase, outputs: int, final: bool = False):
        super().__init__()
        self.recurrent, self.head, self.final = recurrent, nn.Linear(outputs, 5), final

    def forward(self, x: Tensor) -> Tensor:
        states, end = self.recurrent(x)
        return self.head(end[0][-1] if self.final else states[:, -1])


@member
def lstm() -> Member:
    return LastStep(nn.LSTM(6, 10, 2, batch_first=True), 10), (torch.randn(3, 7, 6),)


@member
def lstm_final_state() -> Member:
    return LastStep(nn.LSTM(6, 10, 2, batch_first=True), 10, final=True), (torch.randn(3, 7, 6),)


@member
def gru_both_ways() -> Member:
    return LastStep(nn.GRU(6, 10, 2, batch_first=True, bidirectional=True), 20), (torch.randn(3, 7, 6),)


@member
def plain_rnn() -> Member:
    return LastStep(nn.RNN(6, 10, batch_first=True), 10), (torch.randn(3, 7, 6),)
