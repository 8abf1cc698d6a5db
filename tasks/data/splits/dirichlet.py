"""Deals whose partitions have labels in proportions that are drawn from a Dirichlet distribution."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from roundweave.storage.errors import DataError
from roundweave.tasks.data.splits.deals import Deal, Pool, PositiveFloat, Rows, cut_rows

LEAST, DRAWS = 10, 1000
"""The fewest examples of a partition by ``dirichlet_by_class``, as in NIID-Bench, and the most draws for them."""

MOST = 1e300
"""The largest concentration to draw with. Larger ones give the same proportions, and overflow."""


@dataclass(frozen=True)
class Dirichlet(Deal):
    """Each partition's label proportions are drawn from Dirichlet(`alpha` p), where p are those of all examples.

    Partitions have equal sizes (Hsu et al. 2019, section 3). The smaller `alpha`, the fewer labels a partition
    has. When a label is used up, others take its place, so the last partitions get what is left.
    """

    alpha: PositiveFloat
    random = True
    labelled = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        _, labels, left = np.unique(np.asarray(pool.labels), return_inverse=True, return_counts=True)
        queues = [generator.permutation(pool.rows[labels == label]) for label in range(len(left))]
        concentration = min(self.alpha, MOST) * left / left.sum()
        parts = []
        for size in map(len, cut_rows(pool.rows, partitions)):
            counts = _draw(size, concentration, left, generator)
            parts.append(
                np.concatenate([queue[n - c : n] for queue, n, c in zip(queues, left, counts, strict=True)])
            )
            left = left - counts
        return parts


@dataclass(frozen=True)
class DirichletByClass(Deal):
    """Each class is split over the partitions in proportions drawn from Dirichlet(`alpha`), so that sizes differ.

    The method is that of Yurochkin et al. 2019, section 4, as in Li et al. 2022 (NIID-Bench, section 3): a
    partition that is full (of average size) gets none of the next class, and all is drawn again until each
    partition has enough examples. Raises `DataError` if some partitions stay too small.
    """

    alpha: PositiveFloat
    random = True
    labelled = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        classes = [pool.rows[pool.labels == label] for label in np.unique(np.asarray(pool.labels))]
        # With few examples for many partitions, half the average size is enough, or no draw would succeed.
        least = max(1, min(LEAST, len(pool.rows) // (2 * partitions)))
        for _ in range(DRAWS):
            counts = self._counts(np.array(list(map(len, classes))), partitions, generator)
            if counts.sum(0).min() >= least:
                dealt = [
                    np.split(generator.permutation(rows), np.cumsum(count)[:-1])
                    for rows, count in zip(classes, counts, strict=True)
                ]
                return [np.concatenate(part) for part in zip(*dealt, strict=True)]
        raise DataError(
            f"split dirichlet_by_class:{self.alpha:g}: in {DRAWS} draws some of {partitions} partitions always "
            f"had fewer than {least} examples; use a larger number or fewer partitions"
        )

    def _counts(self, classes: np.ndarray, partitions: int, generator: np.random.Generator) -> np.ndarray:
        """How many examples of each class go to each partition, (classes, partitions).

        `classes` has the number of examples of each class.
        """
        counts = np.zeros((len(classes), partitions), np.int64)
        for label, examples in enumerate(classes):
            shares = generator.dirichlet(np.full(partitions, min(self.alpha, MOST)))
            shares = np.where(counts.sum(0) < classes.sum() / partitions, shares, 0.0)
            bounds = np.cumsum(shares) * examples / (shares.sum() or 1.0)
            counts[label] = np.diff(bounds.astype(np.int64), prepend=0)
            counts[label, -1] += examples - counts[label].sum()
        return counts


def _draw(size: int, concentration: np.ndarray, left: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw how many examples of each label to take, (labels,), `size` in all and at most those `left`."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        # What remains of a Dirichlet draw without some labels is one over the others.
        usable = np.flatnonzero(counts < left)
        counts[usable] += generator.multinomial(missing, generator.dirichlet(concentration[usable]))
        counts = np.minimum(counts, left)
    return counts
