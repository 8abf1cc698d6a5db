"""Small networks that are built in by name."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping

import torch
from torch import nn
from torch.nn import functional

from storage.errors import ModelError
from tasks.networks.gpt import Gpt

Shape = tuple[int, ...]


def linear(inputs: Shape, outputs: int) -> nn.Module:
    """Linear or logistic regression on the flattened inputs, (examples, *) -> (examples, outputs)."""
    return nn.Sequential(nn.Flatten(), nn.Linear(math.prod(inputs), outputs))


class Mlp(nn.Module):
    """One hidden layer of rectified units."""

    def __init__(self, inputs: Shape, outputs: int, hidden: int = 256, dropout: float = 0.0) -> None:
        super().__init__()
        self.fc1 = nn.Linear(math.prod(inputs), hidden)
        self.dropout = nn.Dropout(dropout)
        self.fc2 = nn.Linear(hidden, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """(examples, *) -> (examples, outputs)."""
        return self.fc2(self.dropout(functional.relu(self.fc1(inputs.flatten(1)))))  # type: ignore[no-any-return]


class Cnn(nn.Module):
    """Two convolutions with BatchNorm, each halving the image, and a linear head."""

    def __init__(self, inputs: Shape, outputs: int, channels: int = 16) -> None:
        super().__init__()
        if len(inputs) != 3:
            raise ModelError(f"the cnn reads images of shape (channels, height, width), not {inputs}")
        self.conv1 = nn.Conv2d(inputs[0], channels, 3, padding=1)
        self.norm1 = nn.BatchNorm2d(channels)
        self.conv2 = nn.Conv2d(channels, 2 * channels, 3, padding=1)
        self.norm2 = nn.BatchNorm2d(2 * channels)
        self.head = nn.Linear(2 * channels * (inputs[1] // 4) * (inputs[2] // 4), outputs)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(examples, channels, height, width) -> (examples, outputs)."""
        hidden = functional.max_pool2d(functional.relu(self.norm1(self.conv1(images))), 2)
        hidden = functional.max_pool2d(functional.relu(self.norm2(self.conv2(hidden))), 2)
        return self.head(hidden.flatten(1))  # type: ignore[no-any-return]


MODELS: Mapping[str, Callable[..., nn.Module]] = {
    "linear": linear,
    "logistic": linear,
    "mlp": Mlp,
    "cnn": Cnn,
    "gpt": Gpt,
}
