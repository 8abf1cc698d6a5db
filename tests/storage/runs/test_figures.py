"""Plots show what the tables say, on the axes that they are given."""

from __future__ import annotations

import io
from collections.abc import Iterator

import matplotlib.pyplot as plt
import numpy as np
import pandas as pd
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from roundweave.flows.stored import Run
from roundweave.storage.errors import UsageError
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.figures import OUTCOMES, Plots, draw_columns, draw_map

HISTORY = pd.DataFrame({"loss": [float("nan"), 2.0, float("nan"), 1.0], "f1": [0.1, 0.2, 0.3, 0.4]})


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def run(tiny) -> Run:
    """Three rounds; partition 0 is refused in round 2, and takes no part in round 3."""
    return tiny.run({}, {"refused": (0,)}, {"metrics": {1: {"train_loss": 4.0}}})


def test_only_rounds_with_a_number_are_drawn() -> None:
    axes = Figure().subplots()
    [line] = draw_columns(HISTORY, ["loss", "absent"], axes)
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 3], [2.0, 1.0])
    assert line.get_label() == "loss"


@pytest.mark.parametrize("name", ["history", "divergence", "changes", "refusals"])
def test_a_plot_is_drawn_on_the_axes_that_it_is_given(run, name) -> None:
    figure = Figure()
    axes = figure.subplots()
    assert getattr(Plots(run), name)(ax=axes) is axes
    assert "round" in [each.get_xlabel() for each in figure.axes]
    assert axes.get_title().startswith("tiny")
    assert plt.get_fignums() == []
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_each_kind_of_score_has_a_panel_whose_colours_mean_the_same(tiny) -> None:
    scores = {"worst_loss": 2.0, "accuracy": 0.5, "worst_accuracy": 0.4, "spread_accuracy": 0.1, "worst_case": 3.0}
    run = tiny.run(*({"score": Score(1.0 / round, scores, 8)} for round in (1, 2)))
    panels = Plots(run).history().figure.axes
    lines = [(panel.get_title("left"), line) for panel in panels for line in panel.lines]
    assert [(title, line.get_label(), line.get_color(), line.get_ydata()[-1]) for title, line in lines] == [
        *(("loss", "training", "C0", 2.5 + 1 / 42), ("loss", "held out", "C1", 0.5), ("loss", "worst", "C3", 2.0)),
        *(("accuracy", "held out", "C1", 0.5), ("accuracy", "spread", "C2", 0.1)),
        *(("accuracy", "worst", "C3", 0.4), ("worst_case", "held out", "C1", 3.0)),
    ]
    legend = [text.get_text() for text in panels[-1].get_legend().get_texts()]
    assert legend == ["training", "held out", "spread", "worst"]


def test_each_partition_has_a_line_of_its_divergence(run) -> None:
    axes = Plots(run).divergence("cosine")
    table = run.divergence()["cosine"]
    for partition, line in enumerate(axes.lines):
        told = table[partition].dropna()
        assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == (told.index.tolist(), told.tolist())
    with pytest.raises(UsageError, match=r"no measure 'cosin'; did you mean cosine\?"):
        Plots(run).divergence("cosin")


def test_the_divergence_of_many_partitions_is_a_map(run, monkeypatch) -> None:
    monkeypatch.setattr("roundweave.storage.runs.figures.LINES", 1)
    axes = Plots(run).divergence()
    assert not axes.lines
    shown = axes.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(shown, np.nan), run.divergence()["relative"].loc[1:].T)


def test_partitions_are_drawn_by_name(tiny, monkeypatch) -> None:
    """One may be called as what became of updates is."""
    run = tiny.run({"refused": (0,)}, {}, names=("refused", "paris$"))
    assert [each.get_text() for each in Plots(run).divergence().get_legend().get_texts()] == [
        "refused",
        r"paris\$",
    ]
    assert [each.get_text() for each in Plots(run).refusals().get_yticklabels()] == ["refused", r"paris\$"]
    monkeypatch.setattr("roundweave.storage.runs.figures.LINES", 1)
    assert [each.get_text() for each in Plots(run).divergence().get_yticklabels()] == ["refused", r"paris\$"]
    assert (Plots(run).named_rows, Plots(tiny.run({}, name="old")).named_rows) == (2, 0)


def test_who_was_refused_has_its_colour(run) -> None:
    mesh = Plots(run).refusals().collections[0]
    shown = [[to_hex(mesh.to_rgba(cell)) for cell in row] for row in mesh.get_array()]
    no_part, accepted, refused, _ = OUTCOMES.values()
    assert shown == [[accepted, refused, no_part], [accepted, accepted, accepted]]


@pytest.mark.parametrize("change", [0.0, np.nan])
def test_a_run_in_which_nothing_changed_is_drawn(run, monkeypatch, change: float) -> None:
    monkeypatch.setattr(run, "changes", lambda: pd.DataFrame({"weight": [change, change]}, [1, 2]))
    Plots(run).changes(Figure().subplots()).figure.savefig(io.BytesIO())


def test_a_map_leaves_a_gap_for_a_lost_round() -> None:
    axes = Figure().subplots()
    draw_map(pd.DataFrame({"a": [1.0, 2.0], "b": [3.0, 4.0]}, index=[1, 3]), axes, "norm")
    shown = np.ma.filled(axes.collections[0].get_array(), np.nan)
    np.testing.assert_array_equal(shown, [[1, np.nan, 2], [3, np.nan, 4]])
    assert [text.get_text() for text in axes.get_yticklabels()] == ["a", "b"]


def test_the_only_cell_of_a_map_has_a_size() -> None:
    axes = Figure().subplots()
    draw_map(pd.DataFrame({"a": [1.0]}, index=[1]), axes, None)
    assert axes.collections[0].get_coordinates().tolist() == [[[0.5, -0.5], [1.5, -0.5]], [[0.5, 0.5], [1.5, 0.5]]]


@pytest.mark.parametrize("name", ["history", "divergence", "changes", "refusals"])
def test_a_run_without_rounds_has_empty_plots_in_a_figure_that_a_notebook_shows(tiny, name) -> None:
    axes = getattr(Plots(Run(tiny.create().path)), name)()
    axes.figure.canvas.draw()
    assert not axes.lines
    assert not axes.collections
    assert plt.figure(plt.get_fignums()[0]) is axes.figure
