"""The numbers of a run as one table, a row a round."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from storage.rounds.history import History

if TYPE_CHECKING:
    import pandas as pd


def history_table(
    history: History, scores: Sequence[str], metrics: Sequence[str], committed: Sequence[int]
) -> pd.DataFrame:
    """A row for each committed round: see `Run.history`; `scores` are those besides the loss."""
    import pandas as pd

    rows = committed[-1] + 1
    told = {"bookkeeping": ("seconds", "accepted", "weight"), "scores": ("loss", *scores), "metrics": metrics}
    paths = [f"{group}/{name}" for group, names in told.items() for name in names]
    numbers = history.read_all(paths, rows)  # (round,) or (round, partition)
    columns = {name: numbers[f"scores/{name}"] for name in ("loss", *scores)}
    columns["seconds"] = numbers["bookkeeping/seconds"]
    accepted = numbers["bookkeeping/accepted"]
    weight = np.where(accepted == 1, numbers["bookkeeping/weight"], 0.0)
    for name, column in _columns(metrics, set(columns) | COUNTS).items():
        columns[column] = _weighted_mean(numbers[f"metrics/{name}"], weight)
    columns["examples"] = weight.sum(axis=1)
    columns["accepted"] = np.nansum(accepted, axis=1)
    table = pd.DataFrame(columns, index=pd.RangeIndex(rows, name="round"))
    return table.loc[list(committed)].astype({"examples": int, "accepted": int})


COUNTS = {"examples", "accepted"}
"""Further columns of a history."""


BOOKKEEPING = {"seconds", "weight", "accepted", "map_seconds"}
"""Arrays of the bookkeeping; a metric of such a name is another number."""


def _columns(metrics: Sequence[str], columns: set[str]) -> dict[str, str]:
    """The column of each metric: its name, else that with ``map_`` before it as often as it takes."""
    renamed = [name for name in metrics if name in columns | BOOKKEEPING]
    named = {name: name for name in metrics if name not in renamed}
    for name in renamed:
        column = f"map_{name}"
        while column in columns | set(named.values()):
            column = f"map_{column}"
        named[name] = column
    return named


def _weighted_mean(metric: np.ndarray, weight: np.ndarray) -> np.ndarray:
    """The mean over partitions, (round, partition) -> (round,); NaN where no accepted update tells of it."""
    told = np.where(np.isfinite(metric), weight, 0.0)
    total = told.sum(axis=1)
    mean: np.ndarray = np.nansum(metric * told, axis=1) / np.where(total > 0, total, np.nan)
    return mean
