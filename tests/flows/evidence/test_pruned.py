"""What was pruned of a run is computed again wherever it is asked for, and what is there is served."""

from __future__ import annotations

import pytest

import roundweave as rw
from roundweave.flows.exporting.report import write_report
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from tests.flows.command.in_process import run as command

SMALL = {"algorithm": "fed_avg", "partitions": 2, "rounds": 5, "local_steps": 1, "model_options": {"hidden": 4}}


@pytest.fixture
def pruned(train) -> rw.Run:
    """A run of which the states of rounds 0, 4 and 5 and the updates of 4 and 5 are kept."""
    prune_run(RoundStore(train(**SMALL, name="small").path), Keep.of("last:2"))
    return rw.open_run("small")


@pytest.fixture
def whole(train) -> rw.Run:
    """The same run with all of its rounds."""
    return train(**SMALL, name="whole")


def test_what_is_not_there_is_made_again_and_replayed(pruned, capsys) -> None:
    code, out, _ = command(capsys, "replay", "small", "--all", "--executor", "inline")
    assert (code, out) == (0, "small, round 1 to 5: bit-identical\n")
    assert pruned.replay(3).identical


@pytest.mark.thorough
def test_tables_and_the_page_are_of_the_rounds_that_are_there(pruned, tmp_path) -> None:
    assert pruned.changes().index.tolist() == [5]
    assert pruned.divergence().index.tolist() == [0, 4, 5]
    assert pruned.divergence([2]).index.tolist() == [2]
    page = write_report(pruned, tmp_path / "run.html", replay=2).read_text()
    assert page.count("bit-identical") == 2
    assert "not drawn" not in page


@pytest.mark.thorough
def test_runs_of_which_one_was_pruned_are_equal(pruned, whole, train, capsys) -> None:
    code, out, _ = command(capsys, "diff", "small", "whole")
    assert (code, out) == (0, "small and whole are equal: experiment, updates and states of 6 rounds\n")
    train(**SMALL | {"lr": 0.2}, name="other")
    code, out, err = command(capsys, "diff", "small", "other")
    assert (code, err.count("\n")) == (1, 1)
    assert "computing round 1 of small again" in err
    assert "the update of partition 0" in out


@pytest.mark.thorough
def test_show_says_what_was_pruned(pruned, whole, capsys) -> None:
    kept = "the states of rounds 0, 4 to 5; the updates of rounds 4 to 5"
    rows = f"stored: {kept}; all else is computed when it is opened"
    assert command(capsys, "show", "small")[1].splitlines()[-1] == rows
    assert "pruned" not in repr(whole)
    assert repr(pruned).endswith(" MB (pruned)>")
    left, size = (float(repr(run).split(" · ")[-1].split()[0]) for run in (pruned, whole))
    # Of six states and five rows of two updates, each as large as a state, three and two are left: 7 of 16.
    assert left == pytest.approx(size * 7 / 16, rel=0.01)
