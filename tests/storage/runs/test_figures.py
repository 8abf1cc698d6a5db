"""Plots show the columns that there are."""

from __future__ import annotations

import pandas as pd
from matplotlib.figure import Figure

from storage.runs.figures import plot_columns, plot_history

HISTORY = pd.DataFrame({"loss": [float("nan"), 2.0, float("nan"), 1.0], "f1": [0.1, 0.2, 0.3, 0.4]})


def test_only_rounds_with_a_number_are_drawn() -> None:
    axes = Figure().subplots()
    assert plot_columns(HISTORY, ["loss", "absent"], axes) is axes
    [line] = axes.lines
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 3], [2.0, 1.0])
    assert line.get_label() == "held-out loss"


def test_scores_have_a_panel_where_there_are_any() -> None:
    left, right = plot_history(HISTORY, ["f1"], "a run").axes
    assert [line.get_label() for line in left.lines] == ["held-out loss"]
    assert [line.get_label() for line in right.lines] == ["f1"]
    assert len(plot_history(HISTORY, [], "a run").axes) == 1
    assert plot_history(HISTORY[["f1"]], [], "nothing yet").axes[0].get_legend() is None
