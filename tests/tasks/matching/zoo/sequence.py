"""Networks over sequences other than transformers."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from tests.tasks.matching.zoo.registry import Member, member


@member
def gated_convolution() -> Member:
    """Causal convolutions over time gated along the channels, as in WaveNet."""

    class Gated(nn.Module):
        def __init__(self, channels: int, dilation: int):
            super().__init__()
            self.reach = 2 * dilation
            self.convolution = nn.Conv1d(channels, 2 * channels, 3, dilation=dilation)
            self.mix = nn.Conv1d(channels, channels, 1)

        def forward(self, x: Tensor) -> Tensor:
            padded = functional.pad(x, (self.reach, 0))
            return x + self.mix(functional.glu(self.convolution(padded), dim=1))

    layers = [nn.Conv1d(6, 12, 1), Gated(12, 1), Gated(12, 2), nn.Conv1d(12, 5, 1)]
    return nn.Sequential(*layers), (torch.randn(3, 6, 11),)


@member
def stack_roll_pad() -> Member:
    class Mixed(nn.Module):
        def __init__(self):
            super().__init__()
            self.inputs = nn.Linear(6, 12)
            self.near = nn.Linear(12, 12)
            self.far = nn.Linear(12, 12)
            self.early = nn.Linear(12, 12)
            self.weights = nn.Parameter(torch.randn(4, 1))
            self.head = nn.Linear(12, 5)

        def forward(self, x: Tensor) -> Tensor:
            x = torch.relu(self.inputs(x))
            far = self.far(torch.roll(x, 1, dims=1))
            early = self.early(functional.pad(x, (0, 0, 1, 0))[:, :-1])
            paths = torch.stack([x, self.near(x), far, early], dim=2)
            return self.head((paths * self.weights).sum(dim=2).relu())

    return Mixed(), (torch.randn(3, 7, 6),)


class LastStep(nn.Module):
    def __init__(self, recurrent: nn.RNNBase, head: nn.Linear):
        super().__init__()
        self.recurrent = recurrent
        self.head = head

    def forward(self, x: Tensor) -> Tensor:
        states, _ = self.recurrent(x)
        return self.head(states[:, -1])


@member
def lstm() -> Member:
    return LastStep(nn.LSTM(6, 10, 2, batch_first=True), nn.Linear(10, 5)), (torch.randn(3, 7, 6),)


@member
def lstm_final_state() -> Member:
    class FinalState(LastStep):
        def forward(self, x: Tensor) -> Tensor:
            _, (hidden, _) = self.recurrent(x)
            return self.head(hidden[-1])

    return FinalState(nn.LSTM(6, 10, 2, batch_first=True), nn.Linear(10, 5)), (torch.randn(3, 7, 6),)


@member
def gru_both_ways() -> Member:
    recurrent = nn.GRU(6, 10, 2, batch_first=True, bidirectional=True)
    return LastStep(recurrent, nn.Linear(20, 5)), (torch.randn(3, 7, 6),)


@member
def plain_rnn() -> Member:
    return LastStep(nn.RNN(6, 10, batch_first=True), nn.Linear(10, 5)), (torch.randn(3, 7, 6),)


@member
def text_classifier() -> Member:
    class Text(nn.Module):
        def __init__(self):
            super().__init__()
            self.embedding = nn.Embedding(30, 16)
            self.hidden = nn.Linear(16, 12)
            self.head = nn.Linear(12, 5)

        def forward(self, tokens: Tensor) -> Tensor:
            return self.head(torch.relu(self.hidden(self.embedding(tokens).mean(dim=1))))

    return Text(), (torch.randint(30, (3, 7)),)
