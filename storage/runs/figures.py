"""Plots of stored runs."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import pandas as pd
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure


LABELS = {"loss": "held-out loss"}
"""What a column of a history is called in a plot, where not by its own name."""


def plot_columns(history: pd.DataFrame, columns: Sequence[str], axes: Axes) -> Axes:
    """Draw columns of a history over its rounds, those that it has."""
    for column in columns:
        if column in history:
            told = history[column].dropna()
            axes.plot(told.index, told, marker=".", label=LABELS.get(column, column))
    axes.set_xlabel("round")
    axes.grid(alpha=0.3)
    if axes.lines:
        axes.legend()
    return axes


def plot_history(history: pd.DataFrame, scores: Sequence[str], title: str) -> Figure:
    """Losses over rounds, and beside them the scores of these names, where there are any."""
    from matplotlib.figure import Figure

    panels = [["train_loss", "loss"], *([list(scores)] if scores else [])]
    figure = Figure(figsize=(4 * len(panels), 3.2), layout="constrained")
    for axes, columns in zip(figure.subplots(1, len(panels), squeeze=False)[0], panels, strict=True):
        plot_columns(history, columns, axes)
    figure.suptitle(title)
    return figure
