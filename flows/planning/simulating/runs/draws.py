"""What chance decides: of each round, for each worker, whatever the order of events.

A worker's number is the same for any number of workers, for all schedules, and whatever happens to others.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import inf

import numpy as np

from flows.planning.simulating.cluster import SimulatedCluster

SLOW, HOW_SLOW, LIFE = range(3)
"""What is drawn."""


@dataclass(frozen=True)
class Draws:
    """What happens to each worker in a round; `number` tells attempts at a map apart, and its copy from it."""

    cluster: SimulatedCluster
    workers: int
    seed: int

    def factors(self, round: int, number: int = 0) -> Sequence[float]:
        """How many times as long each map takes: 1, or of the slow ones a number of a Pareto law from 1 on."""
        return _factors(self.cluster.stragglers, self.cluster.tail, self.workers, self.seed, round, number)

    def lives(self, round: int, number: int = 0) -> Sequence[float]:
        """Seconds until each worker fails, of an exponential law."""
        return _lives(self.cluster.failures, self.workers, self.seed, round, number)


@lru_cache(maxsize=64)
def _factors(share: float, tail: float, workers: int, *key: int) -> Sequence[float]:
    slow = _uniform(SLOW, workers, key) < share
    factors: list[float] = np.where(slow, (1 - _uniform(HOW_SLOW, workers, key)) ** (-1 / tail), 1.0).tolist()
    return factors


@lru_cache(maxsize=64)
def _lives(mean: float | None, workers: int, *key: int) -> Sequence[float]:
    if mean is None:
        return [inf] * workers
    lives: list[float] = (-mean * np.log1p(-_uniform(LIFE, workers, key))).tolist()
    return lives


def _uniform(what: int, workers: int, key: Sequence[int]) -> np.ndarray:
    """A number in [0, 1) for each worker."""
    return np.random.default_rng((what, *key)).random(workers)
