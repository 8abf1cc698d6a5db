"""How examples are split: which are held out, and which partition gets which of the others."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import numpy as np

from storage.errors import DataError
from tasks.numerics import derive_seed

Rows = np.ndarray
"""Indices of examples, int64."""


@dataclass(frozen=True)
class Split:
    """Which partition gets which examples.

    `iid` deals them out at random, `contiguous` in their order; sizes differ by one at most. With
    `resplit_every` n, every n rounds have a random split of their own.
    """

    partitions: int
    kind: Literal["iid", "contiguous"] = "iid"
    seed: int = 0
    resplit_every: int | None = None

    def number(self, round: int) -> int:
        """The number of the split that a round (from 1) uses."""
        return (round - 1) // self.resplit_every if self.resplit_every else 0

    def check(self, examples: int) -> None:
        """Raise `DataError` where there are more partitions than examples."""
        if examples < self.partitions:
            raise DataError(
                f"{self.partitions} partitions need at least as many examples, and there are {examples}; "
                "use fewer partitions"
            )

    def rows(self, pool: Rows, number: int) -> list[Rows]:
        """The pool's rows for each partition; raises `DataError` when there are too few."""
        self.check(len(pool))
        if self.kind == "iid":
            pool = np.random.default_rng(derive_seed(self.seed, "split", number)).permutation(pool)
        bounds = [len(pool) * i // self.partitions for i in range(self.partitions + 1)]
        return [pool[low:high] for low, high in pairwise(bounds)]


def hold_out(targets: np.ndarray, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Rows to train on and rows held out, the same fraction of each class where targets are integers."""
    labels = targets if targets.ndim == 1 and targets.dtype.kind in "iu" else np.zeros(len(targets), int)
    generator = np.random.default_rng(derive_seed(seed, "hold out"))
    held = np.zeros(len(targets), bool)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        held[rows[: round(len(rows) * fraction)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
