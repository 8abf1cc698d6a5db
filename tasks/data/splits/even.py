"""Parts of one size: sizes differ by one at most."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from tasks.data.splits.base import Deal, Pool, Rows


@dataclass(frozen=True)
class Iid(Deal):
    """Examples dealt out at random."""

    random = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """A random order, cut into equal parts."""
        return cut(generator.permutation(pool.rows), partitions)


@dataclass(frozen=True)
class Contiguous(Deal):
    """Examples in their order."""

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """The order of the data, cut into equal parts."""
        return cut(pool.rows, partitions)


def cut(rows: Rows, parts: int) -> list[Rows]:
    """Rows (examples,) in so many runs, the sizes of which differ by one at most."""
    bounds = [len(rows) * i // parts for i in range(parts + 1)]
    return [rows[low:high] for low, high in pairwise(bounds)]
