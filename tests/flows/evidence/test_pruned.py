"""What was pruned of a run is said in one line, wherever it is asked for, and what is there is served."""

from __future__ import annotations

import pytest

import roundweave as rw
from roundweave.flows.exporting.report import write_report
from roundweave.storage.errors import RoundMissing
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from tests.flows.command.in_process import run as command

SMALL = {"algorithm": "fed_avg", "partitions": 2, "rounds": 5, "local_steps": 1, "model_options": {"hidden": 4}}

GONE = "the state of round {} of {} went when it was pruned; the nearest are those of rounds 0, 4\n"


@pytest.fixture
def pruned(train) -> rw.Run:
    """A run of which the states of rounds 0, 4 and 5 and the updates of 4 and 5 are kept."""
    run = train(**SMALL, name="small")
    prune_run(RoundStore(run.path), Keep.of("last:2"))
    return rw.open_run("small")


def test_what_is_there_is_replayed_and_what_is_not_is_named(pruned, capsys) -> None:
    inline = ("--executor", "inline")
    assert command(capsys, "replay", "small", "--round", "5", *inline)[0] == 0
    code, out, _ = command(capsys, "replay", "small", "--all", *inline)
    assert (code, out.splitlines()[0]) == (0, "small, round 1, 5: bit-identical")
    assert out.splitlines()[1:] == ["not replayed: round 2 to 4; " + GONE.format(1, pruned.path).rstrip()]
    code, _, err = command(capsys, "replay", "small", "--round", "3", *inline)
    assert (code, err) == (1, "error: round 3 of small cannot be replayed: " + GONE.format(2, pruned.path))
    with pytest.raises(RoundMissing, match="round 3 of small cannot be replayed: the state of round 2 of"):
        pruned.replay(3)


def test_what_is_there_is_recombined_and_what_is_not_is_a_line(pruned, capsys) -> None:
    recombine = ("recombine", "small", "--reduce", "median", "--executor", "inline", "--round")
    assert command(capsys, *recombine, "5")[0] == 0
    assert command(capsys, *recombine, "4")[::2] == (1, "error: " + GONE.format(3, pruned.path))
    code, _, err = command(capsys, *recombine[:-1], "--all")
    assert (code, err.count("\n")) == (1, 1)
    assert "the updates of round 1" in err


def test_tables_and_the_page_are_of_the_rounds_that_are_there(pruned, tmp_path) -> None:
    assert pruned.changes().index.tolist() == [5]
    assert pruned.divergence().index.tolist() == [0, 4, 5]
    with pytest.raises(RoundMissing, match="the updates of round 2 of"):
        pruned.divergence([2])
    page = write_report(pruned, tmp_path / "run.html", replay=2).read_text()
    assert page.count("bit-identical") == 2
    assert "not drawn" not in page


def test_runs_of_which_one_was_pruned_are_equal(pruned, train, capsys) -> None:
    train(**SMALL, name="whole")
    code, out, _ = command(capsys, "diff", "small", "whole")
    assert (code, out) == (0, "small and whole are equal: experiment, updates and states of 6 rounds\n")
    train(**SMALL | {"lr": 0.2}, name="other")
    code, out, err = command(capsys, "diff", "small", "other")
    assert (code, err) == (1, "")
    assert "its numbers cannot be read: the updates of round 1 of" in out


def test_show_says_what_was_pruned(pruned, train, capsys) -> None:
    rows = "kept: the states of rounds 0, 4 to 5, and the updates of rounds 4 to 5"
    assert command(capsys, "show", "small")[1].splitlines()[-1] == rows
    whole = train(**SMALL, name="whole")
    assert "pruned" not in repr(whole)
    assert repr(pruned).endswith(" MB (pruned)>")
    left, size = (float(repr(run).split(" · ")[-1].split()[0]) for run in (pruned, whole))
    # Of six states and five rows of two updates, each as large as a state, three and two are left: 7 of 16.
    assert left == pytest.approx(size * 7 / 16, rel=0.01)
