"""A perceptron of any depth."""

from __future__ import annotations

from itertools import pairwise

from torch import nn


def perceptron(widths: list[int], activation: str) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), getattr(nn, activation)()]
    return nn.Sequential(*layers[:-1])
