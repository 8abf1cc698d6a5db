"""Draws some of the partitions, without replacement, from the seed and the round's number alone."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from roundweave.storage.errors import DataError
from roundweave.tasks.data.splits.split import Sampler
from roundweave.tasks.numerics.pinning import derive_seed


@dataclass(frozen=True)
class Cohort(Sampler):
    """How many partitions take part in a round, drawn anew for each round, without replacement.

    With `by_size` a partition is drawn with a chance in proportion to the number of its examples. If it is drawn
    among those that are `present`, who takes part is known when a round begins, and then from its record.

    >>> Cohort(3).draw(seed=0, round=1, sizes=[1] * 1000) == Cohort(3).draw(seed=0, round=1, sizes=[5] * 1000)
    True
    """

    size: int
    by_size: bool = False
    present: bool = False

    def draw(
        self, seed: int, round: int, sizes: Sequence[int], present: Sequence[int] | None = None, *_: Any
    ) -> tuple[int, ...]:
        """The numbers of the partitions of a round, ascending; `sizes` has the examples of each, if they count.

        They are drawn among those that are `present`, one at least, and are these if there are no more; None: all.
        """
        generator = np.random.default_rng(derive_seed(seed, "cohort", round))
        among = np.arange(len(sizes)) if present is None else np.array(sorted(present), dtype=int)
        size = self.size if present is None else min(self.size, len(among))
        chances = None
        if self.by_size:
            counts = np.array(sizes)[among]
            chances = counts / counts.sum()
            if (full := np.count_nonzero(chances)) < size:
                raise DataError(f"a cohort of {size} by size: only {full} partitions have examples")
        drawn = generator.choice(among, size, replace=False, p=chances)
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
