"""Labels in other proportions in each partition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.data.splits.base import Deal, Pool, Rows, positive
from tasks.data.splits.even import cut


@dataclass(frozen=True)
class Dirichlet(Deal):
    """Each partition's labels in proportions drawn from Dirichlet(`alpha` p), p those of all labels.

    Hsu et al. 2019, section 3. Partitions are of one size. The smaller `alpha`, the fewer labels a partition has.
    Where a label is used up, the others take its place, so the last partitions get what is left.
    """

    alpha: float
    random = True
    labelled = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """Partition by partition, so many rows of each label as were drawn, at random."""
        _, labels, left = np.unique(np.asarray(pool.labels), return_inverse=True, return_counts=True)
        queues = [generator.permutation(pool.rows[labels == label]) for label in range(len(left))]
        concentration = self.alpha * left / left.sum()
        parts = []
        for size in map(len, cut(pool.rows, partitions)):
            counts = _draw(size, concentration, left, generator)
            parts.append(
                np.concatenate([queue[n - c : n] for queue, n, c in zip(queues, left, counts, strict=True)])
            )
            left = left - counts
        return parts


def dirichlet(alpha: str) -> Dirichlet:
    """Of a text, such as ``0.3``."""
    return Dirichlet(positive(alpha, float, "dirichlet"))


def _draw(size: int, concentration: np.ndarray, left: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """How many of each label (labels,), as long as there are so many left."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        # What remains of a Dirichlet draw without some labels is one over the others.
        usable = np.flatnonzero(counts < left)
        counts[usable] += generator.multinomial(missing, generator.dirichlet(concentration[usable]))
        counts = np.minimum(counts, left)
    return counts
