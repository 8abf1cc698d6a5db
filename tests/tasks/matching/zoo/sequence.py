"""Networks over sequences other than transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks.matching.zoo.registry import Member, member


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
