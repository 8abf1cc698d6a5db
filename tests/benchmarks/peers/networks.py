"""The network that is trained by all who have torch; a run keeps this file, so it imports nothing else."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch


def mlp(sizes: Sequence[int]) -> torch.nn.Module:
    """Linear layers with rectified units between them, (examples, *) -> (examples, outputs)."""
    layers: list[torch.nn.Module] = [torch.nn.Flatten()]
    for inputs, outputs in pairwise(sizes):
        layers += [torch.nn.Linear(inputs, outputs), torch.nn.ReLU()]
    return torch.nn.Sequential(*layers[:-1])
