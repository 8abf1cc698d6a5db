"""The cohort: which partitions take part in a round, or compute at one time for a parameter server."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

import numpy as np

from roundweave.storage.errors import DataError
from roundweave.tasks.numerics.pinning import derive_seed


@dataclass(frozen=True)
class Cohort:
    """How many partitions take part in a round, drawn anew for each round, without replacement.

    With `by_size` a partition is drawn with a chance in proportion to the number of its examples.

    >>> Cohort(3).draw(seed=0, round=1, sizes=[1] * 1000) == Cohort(3).draw(seed=0, round=1, sizes=[5] * 1000)
    True
    """

    size: int
    by_size: bool = False

    def draw(self, seed: int, round: int, sizes: Sequence[int]) -> tuple[int, ...]:
        """The numbers of the partitions of a round, ascending; `sizes` has the examples of each, if they count."""
        generator = np.random.default_rng(derive_seed(seed, "cohort", round))
        chances = None
        if self.by_size:
            chances = np.array(sizes) / sum(sizes)
            if (full := np.count_nonzero(chances)) < self.size:
                raise DataError(f"a cohort of {self.size} by size: only {full} partitions have examples")
        drawn = generator.choice(len(sizes), self.size, replace=False, p=chances)
        return tuple(sorted(drawn.tolist()))

    def draw_next(self, seed: int, pushes: int, sizes: Sequence[int], busy: Collection[int]) -> int:
        """The partition that computes next for a parameter server after so many pushes: one that is not `busy`.

        Raises `DataError` if partitions are drawn by size, and only `busy` ones have examples.
        """
        drawn = derive_seed(seed, "next", pushes)
        if not self.by_size:
            place = drawn % (len(sizes) - len(busy))
            for partition in sorted(busy):
                place += partition <= place
            return place
        chances = np.array(sizes, dtype=np.float64)
        chances[list(busy)] = 0
        if not chances.any():
            raise DataError(f"a cohort of {self.size} by size: only {len(busy)} partitions have examples, too few")
        return int(np.random.default_rng(drawn).choice(len(sizes), p=chances / chances.sum()))
