"""Updates that came to a parameter server: what is told of them, counted by item."""

from __future__ import annotations

import pytest
from matplotlib.colors import to_hex

from roundweave.flows.stored import Run
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.figures import OUTCOMES, Plots
from roundweave.storage.runs.measures import ARRIVAL, by_worker
from tests.storage.runs.test_cards import cells
from tests.storage.runs.test_figures import _closed  # noqa: F401

STALENESS = [{0: 0, 1: 0}, {0: 1, 1: 0}, {0: 1, 1: 2}]
REFUSED = {(3, 0)}


@pytest.fixture
def run(tiny) -> Run:
    """Three rounds of two updates each, of which that of partition 0 is refused in the last."""
    store = tiny.create()
    tiny.serve(store, STALENESS, REFUSED)
    return Run(store.path)


@pytest.fixture
def waiting(tiny) -> Run:
    """Two rounds that waited for all partitions."""
    return Run(tiny.train(tiny.create("waiting"), 2).path)


def test_each_update_that_arrived_has_a_row(run) -> None:
    table = run.arrivals()
    assert tuple(table.columns) == ARRIVAL
    assert table.values.tolist() == [
        [1, 0, 1, 0, 0, True, 0.5, "worker 0"],
        [1, 1, 1, 0, 0, True, 1.5, "worker 1"],
        [2, 0, 2, 1, 1, True, 0.5, "worker 0"],
        [2, 1, 2, 1, 0, True, 1.5, "worker 1"],
        [3, 0, 3, 2, 1, False, 0.5, "worker 0"],
        [3, 1, 3, 2, 2, True, 1.5, "worker 1"],
    ]


def test_they_add_up_by_worker(run) -> None:
    summed = {"updates": 3, "share": 0.5, "largest": 1, "refused": 1, "seconds": 0.5, "partitions": [0]}
    first, second = by_worker(run)
    assert first == summed | {"worker": "worker 0", "staleness": pytest.approx(2 / 3)}
    assert (second["staleness"], second["largest"], second["refused"]) == (pytest.approx(2 / 3), 2, 0)


def test_the_history_has_the_mean_staleness_of_what_was_accepted_by_weight(run) -> None:
    """Partition 0 has 10 examples and partition 1 has 11."""
    assert run.history()["staleness"].loc[1:].tolist() == pytest.approx([0, 10 / 21, 2])


def test_they_have_the_names_of_partitions(tiny) -> None:
    store = tiny.create(names=("paris", "berlin"))
    tiny.serve(store, STALENESS, REFUSED)
    run = Run(store.path)
    assert run.arrivals()["partition_name"].tolist() == ["paris", "berlin"] * 3
    legend = Plots(run).staleness().get_legend()
    assert [text.get_text() for text in legend.get_texts()] == ["paris", "berlin", "refused"]


def test_where_rounds_waited_nothing_arrived(waiting) -> None:
    table = waiting.arrivals()
    assert (len(table), tuple(table.columns)) == (0, ARRIVAL)
    assert by_worker(waiting) == []
    assert "staleness" not in waiting.history()
    with pytest.raises(UsageError, match="waiting has no staleness: its rounds waited for all partitions"):
        Plots(waiting).staleness()


def test_bars_of_partitions_stand_on_one_another_with_what_was_refused_on_top(run) -> None:
    axes = Plots(run).staleness()
    bars = {group.get_label(): [(bar.get_y(), bar.get_height()) for bar in group] for group in axes.containers}
    assert bars == {
        "0": [(0, 1), (0, 1), (0, 0)],
        "1": [(1, 2), (1, 0), (0, 1)],
        "refused": [(3, 0), (1, 1), (1, 0)],
    }
    assert to_hex(axes.containers[-1].patches[1].get_facecolor()) == OUTCOMES["refused"]
    assert [text.get_text() for text in axes.get_legend().get_texts()] == ["0", "1", "refused"]
    assert (axes.get_xlabel(), axes.get_ylabel()) == ("staleness", "updates")


def test_the_card_of_a_round_tells_of_turns_and_staleness(run, waiting) -> None:
    head, *rows = cells(str(run.round(3)))
    assert head == ["partition", "weight", "result", "push", "version", "staleness"]
    assert rows == [["0", "10", "not", "sound", "3", "2", "1"], ["1", "11", "accepted", "3", "2", "2"]]
    assert "push" not in str(waiting.round(1))
