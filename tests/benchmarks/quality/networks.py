"""Networks for 28 x 28 images of ten classes: deep, with BatchNorm, and with attention."""

from __future__ import annotations

from itertools import pairwise

import torch
from torch import nn
from torch.nn import functional


def deep(width: int = 512) -> nn.Module:
    """Three hidden layers of rectified units."""
    sizes = [784, width, width, width]
    hidden = [m for a, b in pairwise(sizes) for m in (nn.Linear(a, b), nn.ReLU())]
    return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, 10))


class Block(nn.Module):
    """Two convolutions with BatchNorm beside a shortcut, which is a convolution where the shape changes."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False)
        self.norm1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(outputs)
        self.short: nn.Module = nn.Identity() if inputs == outputs else nn.Conv2d(inputs, outputs, 1, stride)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(examples, channels, height, width) -> (examples, channels, height, width)."""
        hidden = functional.relu(self.norm1(self.conv1(images)))
        return functional.relu(self.norm2(self.conv2(hidden)) + self.short(images))


def resnet(width: int = 16) -> nn.Module:
    """A residual network of three stages, each of one block, with BatchNorm."""
    stem = (nn.Conv2d(1, width, 3, 2, 1, bias=False), nn.BatchNorm2d(width), nn.ReLU())
    stages = (Block(width, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2))
    return nn.Sequential(*stem, *stages, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, 10))


class Vit(nn.Module):
    """A vision transformer over patches of 7 x 7, with the mean over patches in front of its head."""

    def __init__(self, width: int, depth: int, heads: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, 7, 7)
        self.places = nn.Parameter(0.02 * torch.randn(16, width))
        layer = nn.TransformerEncoderLayer(width, heads, 2 * width, 0.0, batch_first=True, norm_first=True)
        self.layers = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, 10)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """(examples, 1, 28, 28) -> (examples, 10)."""
        tokens = self.patches(images).flatten(2).transpose(1, 2) + self.places
        return self.head(self.norm(self.layers(tokens)).mean(1))  # type: ignore[no-any-return]


def vit(width: int = 64, depth: int = 2, heads: int = 4) -> nn.Module:
    """A small vision transformer."""
    return Vit(width, depth, heads)
