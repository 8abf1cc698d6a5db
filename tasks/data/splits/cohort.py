"""The cohort of a round: which partitions take part in it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from storage.errors import DataError
from tasks.numerics.pinning import derive_seed


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
