"""The mean of each coordinate without its extremes."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from storage.errors import UsageError
from tasks.reduces.robust.base import Robust


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """The mean of each coordinate without its `f` smallest and `f` largest (Yin et al. 2018, Definition 2).

    It withstands `f` corrupted updates of at least 2 f + 1: each coordinate stays in the range of the honest ones.

    >>> TrimmedMean(1).center(torch.tensor([[1.0], [2.0], [3.0], [-1e6]])).tolist()
    [1.5]
    """

    f: int

    def __post_init__(self) -> None:
        if self.f < 0:
            raise UsageError(f"trimmed_mean leaves out f = 0 or more at each end, not {self.f}")

    @property
    def needs(self) -> int:
        return 2 * self.f + 1

    def breakdown(self, updates: int) -> int:
        return self.f

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """(updates, elements) -> (elements,)."""
        return points.sort(0).values[self.f : len(points) - self.f].mean(0)
