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

from storage.errors import UsageError
from storage.runs.figures import OUTCOMES, Plots, draw_columns, draw_map
from storage.runs.run import StoredRun

HISTORY = pd.DataFrame({"loss": [float("nan"), 2.0, float("nan"), 1.0], "f1": [0.1, 0.2, 0.3, 0.4]})


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    plt.close("all")


@pytest.fixture
def run(tiny) -> StoredRun:
    """Three rounds; partition 0 is refused in round 2, and takes no part in round 3."""
    store = tiny.create()
    for round, refused in ((1, ()), (2, (0,)), (3, ())):
        commit = tiny.write(store, round, refused=refused)
        if round == 3:
            commit = tiny.write(store, 3, updates={1: commit.updates[1]})
        store.commit(commit)
    return StoredRun(store.path)


def test_only_rounds_with_a_number_are_drawn() -> None:
    axes = Figure().subplots()
    [line] = draw_columns(HISTORY, ["loss", "absent"], axes)
    assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == ([1, 3], [2.0, 1.0])
    assert line.get_label() == "held-out loss"


@pytest.mark.parametrize("name", ["history", "divergence", "changes", "refusals"])
def test_a_plot_is_drawn_on_the_axes_that_it_is_given(run, name) -> None:
    figure = Figure()
    axes = figure.subplots()
    assert getattr(Plots(run), name)(ax=axes) is axes
    assert axes.get_xlabel() == "round"
    assert axes.get_title().startswith("tiny")
    assert plt.get_fignums() == []
    assert all(tick == round(tick) for tick in axes.get_xticks())


def test_a_plot_without_axes_makes_a_figure_that_a_notebook_shows(run) -> None:
    axes = Plots(run).refusals()
    assert plt.figure(plt.get_fignums()[0]) is axes.figure


def test_losses_are_at_the_left_and_scores_at_the_right(run) -> None:
    left, right = Plots(run).history().figure.axes
    assert [line.get_label() for line in left.lines] == ["train_loss", "held-out loss"]
    assert [line.get_label() for line in right.lines] == ["accuracy"]
    assert (left.get_ylabel(), right.get_ylabel()) == ("loss", "accuracy")
    assert [t.get_text() for t in left.get_legend().get_texts()] == ["train_loss", "held-out loss", "accuracy"]
    colours = [line.get_color() for line in (*left.lines, *right.lines)]
    assert len(set(colours)) == 3


def test_each_partition_has_a_line_of_its_divergence(run) -> None:
    axes = Plots(run).divergence("cosine")
    table = run.divergence()["cosine"]
    for partition, line in enumerate(axes.lines):
        told = table[partition].dropna()
        assert (line.get_xdata().tolist(), line.get_ydata().tolist()) == (told.index.tolist(), told.tolist())
    with pytest.raises(UsageError, match=r"no measure 'cosin'; did you mean cosine\?"):
        Plots(run).divergence("cosin")


def test_the_divergence_of_many_partitions_is_a_map(run, monkeypatch) -> None:
    monkeypatch.setattr("storage.runs.figures.LINES", 1)
    axes = Plots(run).divergence()
    assert not axes.lines
    shown = axes.collections[0].get_array()
    np.testing.assert_array_equal(np.ma.filled(shown, np.nan), run.divergence()["relative"].loc[1:].T)


def test_who_was_refused_has_its_colour(run) -> None:
    mesh = Plots(run).refusals().collections[0]
    shown = [[to_hex(mesh.to_rgba(cell)) for cell in row] for row in mesh.get_array()]
    absent, accepted, refused = OUTCOMES.values()
    assert shown == [[accepted, refused, absent], [accepted, accepted, accepted]]


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


def test_of_many_rows_some_are_named() -> None:
    axes = Figure().subplots()
    names = [f"layer{number}" for number in range(100)]
    draw_map(pd.DataFrame(np.ones((2, 100)), columns=names), axes, None)
    assert [text.get_text() for text in axes.get_yticklabels()] == names[::3]


@pytest.mark.parametrize("name", ["history", "divergence", "changes", "refusals"])
def test_a_run_without_rounds_has_empty_plots(tiny, name) -> None:
    axes = getattr(Plots(StoredRun(tiny.create().path)), name)()
    axes.figure.canvas.draw()
    assert not axes.lines
    assert not axes.collections
