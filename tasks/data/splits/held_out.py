"""Which examples are held out to score the network on."""

from __future__ import annotations

import numpy as np

from tasks.data.splits.base import Rows
from tasks.numerics import derive_seed

SCORE_BATCH = 128
"""Held-out examples scored at once; part of the arithmetic, so it is fixed. More leave partitions without any."""


def dealt(held: Rows, partitions: int) -> list[Rows]:
    """The held-out rows that each partition scores, in order: batches that are the same of any partitions."""
    batches = np.array_split(np.arange(-(-len(held) // SCORE_BATCH)), partitions)
    ends = [SCORE_BATCH * sum(map(len, batches[: last + 1])) for last in range(partitions - 1)]
    return np.split(held, ends)


def hold_out(targets: np.ndarray, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Rows to train on and rows held out, the same fraction of each class where targets are integers.

    Targets (examples, *); rows int64, in ascending order.
    """
    labels = targets if targets.ndim == 1 and targets.dtype.kind in "iu" else np.zeros(len(targets), int)
    generator = np.random.default_rng(derive_seed(seed, "hold out"))
    held = np.zeros(len(targets), bool)
    for label in np.unique(labels):
        rows = generator.permutation(np.flatnonzero(labels == label))
        held[rows[: round(len(rows) * fraction)]] = True
    return np.flatnonzero(~held), np.flatnonzero(held)
