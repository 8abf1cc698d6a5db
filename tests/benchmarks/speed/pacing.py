"""A network that takes its time without a core: maps of one length, however many workers share the machine."""

from __future__ import annotations

import os
import time

import torch

PIECES = 30
"""Milliseconds that a forward pass takes at least, asleep for each of them."""

SLOWER = "BENCHMARK_SLOWER"
"""The environment variable of a worker process that says how many times as long it takes there."""


def paced() -> torch.nn.Module:
    """For the digits of 8 x 8 pixels."""

    class Paced(torch.nn.Sequential):
        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            # In pieces, so that a process that is stopped in between takes longer.
            for _ in range(PIECES * int(os.environ.get(SLOWER, "1"))):
                time.sleep(0.001)
            return super().forward(inputs)

    return Paced(torch.nn.Flatten(), torch.nn.Linear(64, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
