"""What commits add to the arrays of numbers: coordinates and metrics, which can be made anew from them."""

from __future__ import annotations

from typing import Any

import numpy as np

from storage.rounds.commits import Commit
from storage.rounds.schema import PARTITION_METRICS, ROUND_METRICS, ArraySpec


def history_rows(commit: Commit, partitions: int) -> dict[str, Any]:
    """The rows of one round by the path of their array; NaN where there is nothing to say."""
    score = commit.score
    values = (
        np.nan if score is None else score.loss,
        np.nan if score is None or score.accuracy is None else score.accuracy,
        commit.seconds,
    )
    columns = np.full((len(PARTITION_METRICS), partitions), np.nan)
    for partition, update in commit.updates.items():
        loss = update.metrics.get("train_loss", np.nan)
        columns[:, partition] = loss, update.weight, update.refused is None, update.seconds
    names = [*ROUND_METRICS, *PARTITION_METRICS]
    metrics = {f"metrics/{name}": row for name, row in zip(names, (*values, *columns), strict=True)}
    return {"committed": True, **metrics}


def empty_chunk(spec: ArraySpec) -> np.ndarray:
    """A chunk of nothing but the fill value."""
    return np.full(spec.chunks, np.nan if spec.fill == "NaN" else spec.fill, spec.stored)
