"""The median of each coordinate."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from tasks.reduces.robust.base import Robust


@dataclass(frozen=True)
class Median(Robust):
    """The median of each coordinate; for an even number, the middle two's mean (Yin et al. 2018, Definition 1).

    It withstands fewer than half of the updates: each coordinate stays in the range of the honest ones.

    >>> Median().center(torch.tensor([[1.0, 5.0], [2.0, 4.0], [1e6, -1e6]])).tolist()
    [2.0, 4.0]
    """

    def breakdown(self, updates: int) -> int:
        return (updates - 1) // 2

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """(updates, elements) -> (elements,)."""
        updates = len(points)
        return points.sort(0).values[(updates - 1) // 2 : updates // 2 + 1].mean(0)
