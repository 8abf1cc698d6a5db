"""Krum: the update whose neighbours are nearest."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import combinations

import torch

from storage.errors import UsageError
from tasks.reduces.robust.base import Robust


@dataclass(frozen=True)
class Krum(Robust):
    """The update with the smallest sum of squared distances to its n - f - 2 nearest of n.

    Blanchard et al. 2017, section 4. It withstands `f` corrupted updates of n if n is at least 2 f + 3. With
    `keep` above 1 it is Multi-Krum, the mean of the `keep` best updates.

    >>> Krum(1).center(torch.tensor([[1.0], [2.0], [2.5], [4.0], [1e6]])).tolist()
    [2.0]
    """

    f: int
    keep: int = 1

    def __post_init__(self) -> None:
        if self.f < 0 or self.keep < 1:
            raise UsageError(f"krum takes f from 0 and keep from 1, not {self.f} and {self.keep}")

    @property
    def needs(self) -> int:
        """The fewest updates: enough for Krum's bound, and for `keep` honest ones."""
        return max(2 * self.f + 3, self.f + self.keep)

    def breakdown(self, updates: int) -> int:
        return self.f

    def center(self, points: torch.Tensor) -> torch.Tensor:
        """(updates, elements) -> (elements,); of equally good updates the first is chosen."""
        distances = torch.zeros(len(points), len(points), dtype=torch.float64)
        for i, j in combinations(range(len(points)), 2):
            distances[i, j] = distances[j, i] = (points[i] - points[j]).double().square().sum()
        # The first of the sorted distances is that of an update to itself, 0.
        scores = distances.sort(1).values[:, 1 : len(points) - self.f - 1].sum(1)
        return points[scores.argsort(stable=True)[: self.keep]].mean(0)
