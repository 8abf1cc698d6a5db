"""Partitions of unequal sizes."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tasks.data.splits.base import Deal, Pool, Rows, positive

POWER = 1.0
"""The exponent of ``sizes:power``: the second partition is half of the first, the tenth a tenth (Zipf's law)."""


@dataclass(frozen=True)
class Sizes(Deal):
    """Examples dealt at random; partition k, from 1, gets one and a share that falls as k ** -`exponent`.

    Power laws of partition sizes are those of federated data (Li et al. 2020, FedProx, section 5).
    """

    exponent: float
    random = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """A random order, cut at the bounds."""
        counts = self.counts(len(pool.rows), partitions)
        return _dealt(pool, counts, generator)

    def counts(self, examples: int, partitions: int) -> np.ndarray:
        """The size of each partition, int64 (partitions,): one each, and the rest by largest remainders."""
        weights = np.arange(1, partitions + 1, dtype=float) ** -self.exponent
        return 1 + _apportioned(examples - partitions, weights)


@dataclass(frozen=True)
class Proportions(Deal):
    """Examples dealt at random, to partitions whose sizes are as these weights, one for each."""

    weights: tuple[float, ...]
    random = True

    @property
    def partitions(self) -> int:
        """As many as there are weights."""
        return len(self.weights)

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """A random order, cut at the bounds."""
        return _dealt(pool, self.counts(len(pool.rows)), generator)

    def counts(self, examples: int) -> np.ndarray:
        """The size of each partition, int64 (partitions,): by largest remainders, and at least one."""
        weights = np.array(self.weights)
        counts = _apportioned(examples, weights / weights.max())
        while not counts.all():
            counts[counts.argmax()] -= 1
            counts[counts.argmin()] += 1
        return counts


def _dealt(pool: Pool, counts: np.ndarray, generator: np.random.Generator) -> list[Rows]:
    return np.split(generator.permutation(pool.rows), np.cumsum(counts)[:-1])


def _apportioned(examples: int, weights: np.ndarray) -> np.ndarray:
    """So many examples in shares as the weights (partitions,), int64 (partitions,), by largest remainders."""
    shares = examples * weights / weights.sum()
    counts: np.ndarray = np.floor(shares).astype(np.int64)
    missing = examples - counts.sum()
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts


def sizes(exponent: str) -> Sizes:
    """Of a text: an exponent such as ``1.5``, or ``power``."""
    return Sizes(POWER if exponent == "power" else positive(exponent, float, "sizes"))


def proportions(weights: str) -> Proportions:
    """Of a text, such as ``3,1,1``."""
    return Proportions(tuple(positive(weight, float, "proportions") for weight in weights.split(",")))
