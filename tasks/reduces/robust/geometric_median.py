"""The point with the smallest sum of distances."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from storage.errors import UsageError
from tasks.reduces.robust.base import Robust


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """The point with the smallest sum of distances to the updates, each counted once.

    Found by smoothed Weiszfeld steps (Pillutla et al. 2022, Algorithm 2) from the median of each coordinate, until
    one is shorter than `tolerance`; a distance below `smoothing` counts as that. Both are shares of the median
    distance, which corrupted updates cannot move. It withstands fewer than half of the updates. Examples do not
    weigh, unlike there: a corrupted partition may claim any number.

    >>> GeometricMedian().center(torch.tensor([[0.0, 0.0], [0.0, 0.0], [3.0, 4.0]])).tolist()
    [0.0, 0.0]
    """

    steps: int = 100
    tolerance: float = 1e-5
    smoothing: float = 1e-3

    def __post_init__(self) -> None:
        if self.steps < 1 or self.smoothing <= 0 or self.tolerance < 0:
            raise UsageError("geometric_median takes steps from 1, smoothing above 0 and tolerance from 0")

    def breakdown(self, updates: int) -> int:
        """Fewer than half."""
        return (updates - 1) // 2

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """(updates, elements) -> (elements,)."""
        center = points.median(0).values
        for _ in range(self.steps):
            distances = torch.stack([(point - center).double().norm() for point in points])
            scale = distances.median()
            if not scale:  # Half of the updates are at the center: there is no better point.
                return center
            shares = 1 / distances.clamp(min=self.smoothing * scale)
            before, center = center, (shares / shares.sum()).to(points.dtype) @ points
            if (center - before).double().norm() <= self.tolerance * scale:
                break
        return center
