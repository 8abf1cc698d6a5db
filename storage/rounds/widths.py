"""Chunks of numbers by round and partition, of as many partitions as there is something to tell of."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from storage.parsing import MOST_TOLD


def narrow(chunk: np.ndarray) -> np.ndarray:
    """A chunk, (round, partition), without the partitions after the last of which it tells; others as they are."""
    if chunk.ndim == 1 or not np.isnan(chunk[:, -1:]).all():
        return chunk
    (told,) = np.nonzero(~np.isnan(chunk).all(axis=0))
    return chunk[:, : told[-1] + 1 if told.size else 0].copy()


def widened(chunk: np.ndarray, width: int) -> np.ndarray:
    """A chunk, (round, partition), of so many partitions, NaN for those that it lacks; others as they are."""
    if chunk.ndim == 1 or chunk.shape[1] >= width:
        return chunk
    wide = np.full((len(chunk), width), np.nan)
    wide[:, : chunk.shape[1]] = chunk
    return wide


def as_stored(chunk: np.ndarray, width: int) -> Iterator[np.ndarray]:
    """The rows of a chunk, (round, partition), each followed by NaN for what it lacks of so many."""
    if chunk.ndim == 1 or chunk.shape[1] >= width:
        yield chunk
        return
    missing = width - chunk.shape[1]
    untold = np.full(min(missing, MOST_TOLD), np.nan)
    for row in chunk:
        yield row
        for start in range(0, missing, MOST_TOLD):
            yield untold[: missing - start]
