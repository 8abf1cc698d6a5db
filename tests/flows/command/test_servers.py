"""Every command on runs of a parameter server, which store the state of each tenth round alone."""

from __future__ import annotations

from pathlib import Path

import pytest

import roundweave as rw
from roundweave.tasks.rounds.persistence import outcomes
from tests.flows.command.in_process import refused, run, said, told
from tests.runs import RUNS

SHORT = ("--rounds", "1", "--executor", "inline")


@pytest.fixture
def stale(stored) -> rw.Run:
    return stored("stale")


def test_show_has_a_table_of_arrivals_and_the_rounds_that_were_scored(stale, capsys) -> None:
    out = said(capsys, "show", "stale")
    arrivals = stale.arrivals()
    dropped = arrivals[~arrivals["accepted"]]
    assert len(dropped) > 0
    words = [line.split() for line in out.splitlines()]
    at = words.index(["worker", "partitions", "updates", "share", "staleness", "largest", "refused"])
    mean, largest = f"{arrivals['staleness'].mean():.2f}", str(arrivals["staleness"].max())
    worker = arrivals["worker"][0]
    assert words[at + 1] == [worker, "0", "to", "3", "24", "100.0%", mean, largest, str(len(dropped))]
    assert [line[0] for line in words[:at] if line[0].isdigit()] == ["0", "12", "24"]
    for number, partition, staleness in dropped[["round", "partition", "staleness"]].itertuples(index=False):
        assert f"round {number} refused partition {partition}: staleness {staleness} is above 3\n" in out


def test_show_as_json_has_what_each_worker_sent(stale, stored, capsys) -> None:
    (row,) = told(capsys, "show", "stale")["arrivals"]
    assert (row["updates"], row["share"], row["partitions"]) == (24, 1.0, [0, 1, 2, 3])
    stored("four")
    assert "arrivals" not in told(capsys, "show", "four")


def test_what_asks_for_a_state_between_has_it_computed_again(stale, capsys, tmp_path: Path) -> None:
    assert not stale.round(11).commit.stored
    for arguments in (
        ("export", "stale@11", "--to", str(tmp_path / "out.safetensors")),
        ("train", "--from", "stale@11", *SHORT),
        ("train", "--start-from", "stale@11", "--model", "logistic", *SHORT),
    ):
        outcomes.REMEMBERED.clear()  # each command is a process of its own
        code, _, said = run(capsys, *arguments)
        assert (code, "computing round 11 of stale again" in said) == (0, True), said


def test_a_fork_and_an_export_begin_with_a_stored_state(stale, capsys, tmp_path: Path) -> None:
    said(capsys, "export", "stale@20", "--to", str(tmp_path / "out.safetensors"))
    code, _, _ = run(capsys, "train", "--from", "stale@20", "--name", "fork", *SHORT, "--max-staleness", "9")
    fork = rw.open_run("fork")
    assert (code, len(fork.arrivals()), fork.round(0).state.params.keys()) == (0, 1, {"float32"})
    assert fork.round(0).params["1.bias"].equal(stale.round(20).params["1.bias"])
    assert fork.arrivals()["version"].min() == 0


def test_a_round_between_is_reduced_again_and_replayed(stale, capsys) -> None:
    between = stale.arrivals().query("accepted and 13 <= round <= 18")["round"].iloc[0]
    code, out, _ = run(capsys, "recombine", "stale", "--round", str(between), "--reduce", "median")
    assert (code, "the same bits" in out) == (0, True), out
    none = stale.arrivals().query("not accepted")["round"].iloc[0]
    said = f"round {none} accepted 0 updates, the quorum is 1; name another round"
    assert refused(capsys, "recombine", "stale", "--round", str(none), "--reduce", "median") == (2, said)
    code, out, _ = run(capsys, "replay", "stale", "--all", "--executor", "inline")
    assert (code, "round 1 to 24: bit-identical" in out) == (0, True), out


def test_a_recorded_order_has_no_difference_and_another_seed_has(stale, train, capsys) -> None:
    fields = {name: value for name, value in RUNS["stale"].items() if name != "speeds"}
    train(**fields, name="again", order="recorded:stale")
    said(capsys, "diff", "stale", "again")
    other = train(**fields, name="other", seed=1)
    code, out, _ = run(capsys, "diff", "stale", "other")
    assert (code, "seed 0 -> 1" in out) == (1, True)
    table = rw.compare([stale, other]).history["staleness"]
    assert table["stale"].dropna().tolist() == stale.history()["staleness"].dropna().tolist()
    assert table["other"].notna().any()


def test_it_is_copied_pruned_and_verified(stale, capsys, tmp_path: Path) -> None:
    said(capsys, "verify", "stale")
    said(capsys, "cp", "stale", str(tmp_path / "there"))
    said(capsys, "prune", "stale", "--keep", "last:2")
    said(capsys, "verify", "stale")
    assert len(rw.open_run("stale").arrivals()) == 24
    copy = rw.Run(tmp_path / "there/stale.zarr")
    assert copy.arrivals().equals(stale.arrivals())
    said(capsys, "resume", "stale", "--rounds", "26")
    assert rw.open_run("stale").done == 26


@pytest.mark.thorough
def test_its_report_has_the_plot_of_staleness(stale, capsys, tmp_path: Path) -> None:
    said(capsys, "report", "stale", "--out", str(tmp_path / "stale.html"), "--replay", "1")
    page = (tmp_path / "stale.html").read_text()
    assert '<img alt="How stale updates were"' in page
    assert "staleness" in page
