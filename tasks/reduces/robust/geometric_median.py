"""The point with the smallest sum of distances."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from storage.errors import UsageError
from tasks.reduces.robust.base import Robust


@dataclass(frozen=True)
class GeometricMedian(Robust):
    """The point with the smallest sum of distances to the updates, each counted once.

    It is found by smoothed Weiszfeld steps (Pillutla et al. 2022, Algorithm 2), which begin at the median of each
    coordinate and end when a step is shorter than `tolerance`. Distances below `smoothing` are raised to it. Both
    are fractions of the median distance, which corrupted updates cannot change. It withstands fewer than half of
    the updates. Unlike in the paper, updates have equal weights, as a corrupted partition may claim any number.

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
        return (updates - 1) // 2

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """(updates, elements) -> (elements,)."""
        center = points.median(0).values
        for _ in range(self.steps):
            distances = torch.stack([(point - center).double().norm() for point in points])
            scale = distances.median()
            if not scale:  # at least half of the updates are at the center, so there is no better point
                return center
            shares = 1 / distances.clamp(min=self.smoothing * scale)
            before, center = center, (shares / shares.sum()).to(points.dtype) @ points
            if (center - before).double().norm() <= self.tolerance * scale:
                break
        return center
