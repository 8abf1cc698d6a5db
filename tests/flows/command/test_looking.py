"""Looking at runs: one that is damaged hides no other, and texts are printed as they are."""

from __future__ import annotations

import itertools
import json
import sys
from pathlib import Path

import pytest

from roundweave.flows.command.subcommands.looking import print_result, summary_or_damage
from roundweave.flows.stored import open_run
from roundweave.storage.errors import RoundFailed
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.listing import list_runs, looked_through
from tests.flows.command.in_process import refused, run, said, told

CONTENTS = (b"\xff" * 50, b"{}", b"[" * 100_000)
SMALL = {"model": "logistic", "partitions": 2, "local_steps": 1}


def test_a_run_with_any_one_file_damaged_hides_nothing(train, tmp_path: Path) -> None:
    path = train(**SMALL, rounds=1, name="hurt").path
    files = sorted(file for file in path.rglob("*") if file.is_file())
    for file, content in itertools.product(files, CONTENTS):
        before = file.read_bytes()
        file.write_bytes(content)
        ((name, hurt),) = looked_through(tmp_path / "runs").items()
        summary = summary_or_damage(name, hurt)
        assert summary["run"] == "hurt"
        if summary["status"] == "damaged":
            assert summary["failure"].count("\n") == 0
        file.write_bytes(before)


def test_runs_takes_a_root_as_other_commands_do(stored, capsys, tmp_path: Path) -> None:
    there = str(stored("four").path.parent.rename(tmp_path / "there"))
    for arguments in ([there], ["--root", there]):
        assert [each["run"] for each in told(capsys, "runs", *arguments)] == ["four"]
    assert refused(capsys, "runs", "here", "--root", "there") == (2, "give one root, here or --root there")


def test_refused_updates_are_counted(stored, capsys) -> None:
    print_result(stored("counting"), {"seconds": 2.0, "first_round_seconds": 1.0})
    assert "2 updates were refused; `roundweave show counting` names them\n" in capsys.readouterr().out


NO_LOSS = """
import torch
class model(torch.nn.Linear):
    def __init__(self):
        super().__init__(64, 10)
    def forward(self, inputs):
        return super().forward(inputs.flatten(1)) * (1.0 if self.training else float("nan"))
"""


def test_a_run_none_of_whose_held_out_examples_has_a_loss_says_so(train, own, capsys) -> None:
    train(model=f"{own(NO_LOSS)}:model", partitions=2, rounds=1, name="f")
    says = "179 of 179 held-out examples were not scored: their loss is not a number\n"
    assert says in said(capsys, "show", "f")


def test_examples_that_score_partitions_are_not_said_to_be_trained_on(stored, capsys) -> None:
    history = stored("scored").history()
    examples = history["examples"][1]
    shown = said(capsys, "show", "scored")
    assert examples < 1618
    assert "1618 examples to train on or to score partitions by, 179 held out" in shown
    assert f"{history['own_loss'][1]:.4f}" in shown.split()


def test_what_is_not_of_roundweave_is_not_called_damaged(capsys, tmp_path: Path) -> None:
    (tmp_path / "runs/theirs.zarr").mkdir(parents=True)
    out = said(capsys, "runs", "--root", str(tmp_path / "runs"))
    assert out.startswith(f"theirs is no run: {tmp_path}/runs/theirs.zarr is not a run of Roundweave")


def test_texts_in_brackets_are_no_markup(train, capsys, tmp_path: Path) -> None:
    folder = tmp_path / "[bold]" / "[/red]"
    folder.mkdir(parents=True)
    (folder / "table.csv").write_text("a,b\n" + "1,[x]\n2,[/y]\n" * 10)
    path = train(data=f"csv:{folder}/table.csv", model="logistic", partitions=2, rounds=1, name="first").path
    with pytest.raises(RoundFailed), hold_lease(LocalPlace(path), "mine"):
        raise RoundFailed("the loss [/bold] is [red]unsound[/red] [/]")
    for arguments in (["runs"], ["split", "--data", f"csv:{folder}/table.csv", "--split", "iid"]):
        said(capsys, *arguments)
    out = said(capsys, "show", "first")
    assert f"csv:{folder}/table.csv" in out
    assert "classes    0 [/y], 1 [x]" in out


def test_nothing_is_cut_where_no_terminal_is(train, capsys) -> None:
    name = "n" * 250
    train(**SMALL, rounds=1, name=name, scores="accuracy,top5")
    out = said(capsys, "runs")
    (row,) = [each for each in out.splitlines() if name in each]
    assert "…" not in out
    assert row.split()[:3] == [name, "complete", "1/1"]
    assert "top5" in row


def test_the_list_is_of_the_last_that_match_in_the_order_asked_for(train, capsys) -> None:
    runs = {
        n: train(model="logistic", partitions=2, rounds=r, name=n) for n, r in (("a", 2), ("b1", 1), ("b2", 3))
    }

    def names(*arguments: str) -> list[str]:
        return [each["run"] for each in told(capsys, "runs", *arguments)]

    assert names() == names("--sort", "began") == ["a", "b1", "b2"]
    assert names("--last", "2") == names("--match", "b*") == ["b1", "b2"]
    assert names("--last", "1", "--match", "[ab]*") == ["b2"]
    assert names("--sort", "-rounds") == ["b2", "a", "b1"]
    assert names("--sort", "loss") == sorted(runs, key=lambda name: runs[name].round(-1).score.loss)
    assert refused(capsys, "runs", "--sort", "lss") == (2, "no column 'lss'; did you mean loss?")
    assert refused(capsys, "runs", "--last", "0")[0] == 2
    (row,) = told(capsys, "runs", "--match", "a")
    assert row["seconds_of_rounds"] == pytest.approx(runs["a"].history()["seconds"].sum())
    assert row["bytes"] == sum(path.stat().st_size for path in runs["a"].path.rglob("*") if path.is_file())


def test_seconds_of_a_round_are_told_in_one_way(stored, capsys) -> None:
    """The mean over what was waited for: rounds that are committed together come in bursts."""
    run = stored("four")
    waited = run.history()["seconds"][2:].mean()
    assert len(run.history()) == 5
    print_result(run, {"seconds": 2.0, "first_round_seconds": 1.0})
    assert f"then {waited:.3f} s a round" in capsys.readouterr().out
    assert f"a round    {waited:.3f} s" in said(capsys, "show", "four")
    assert told(capsys, "show", "four")["seconds_per_round"] == pytest.approx(waited)


def test_a_run_is_complete_once_it_has_the_rounds_that_were_asked_for_last(train, capsys) -> None:
    """One of 8 that was cut off after 2 and is then to have 4 is done with 4, and may still go on to 8."""

    def cut(commit: Commit) -> None:
        if commit.round == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        train(**SMALL, rounds=8, name="first", on_commit=cut)
    assert (open_run("first").status, open_run("first").rounds) == ("interrupted", 8)
    for rounds in (4, 6):
        out = said(capsys, "resume", "first", "--rounds", str(rounds), "--executor", "inline")
        assert out.startswith("first: complete,")
        assert f"{rounds}/{rounds} rounds" in said(capsys, "show", "first")
        said(capsys, "verify", "first")
    assert train(**SMALL, rounds=8, name="first").status == "complete"
    assert open_run("first").digest == train(**SMALL, rounds=8, name="second").digest


def test_what_a_run_began_with_is_named_wherever_a_run_is_summed_up(tmp_path, capsys, train) -> None:
    """The round of another run by a start or a fork, and the data by their digest."""
    first = train(**SMALL, rounds=2, name="first")
    digest = first.attributes["data"]["digest"]
    train(**SMALL, rounds=1, name="warm", start_from="first@-1")
    line = ["--executor", "inline", "--rounds", "1", "--name", "forked", "-q"]
    forked = told(capsys, "train", "--from", "warm@0", *line)
    parents = {"first": None, "warm": "first@2", "forked": "warm@0"}
    assert (forked["parent"], forked["data_digest"], forked["skipped"]) == ("warm@0", digest, None)
    listed = told(capsys, "runs")
    assert {each["run"]: each["parent"] for each in listed} == parents
    assert {each["data_digest"] for each in listed} == {digest}
    for name, parent in parents.items():
        shown = said(capsys, "show", name).splitlines()
        (data,) = (row for row in shown if row.startswith("data "))
        assert data.endswith(f", digest {digest[:16]}")
        assert [row.split()[1].rstrip(",") for row in shown if row.startswith("parent")] == [parent] * bool(parent)


def test_a_store_of_another_version_says_what_to_do_and_is_not_called_damaged(tmp_path, capsys, stored) -> None:
    place = stored("four").path / "zarr.json"
    document = json.loads(place.read_text())
    document["attributes"]["version"] = 3
    place.write_text(json.dumps(document))
    out = said(capsys, "runs")
    assert out.startswith("four is of another version: ")
    assert "open it with the Roundweave that wrote it, or train its configuration again" in out
    assert list_runs(tmp_path / "runs").loc["four", "status"] == "of another version"
    assert run(capsys, "show", "four")[0] == 1


FAILING = """
import torch

def deep(number):
    return deep(number - 1) if number else {}["nothing"]

def data():
    deep(2)

def loss(outputs, targets):
    if len(outputs) == 25:
        deep(2)
    return torch.nn.functional.cross_entropy(outputs, targets)
"""


@pytest.mark.parametrize("where", ["data", "loss"])
def test_an_error_of_the_users_is_shown_whole_where_that_is_asked_for(
    tmp_path, monkeypatch, capsys, own, where
) -> None:
    """Of the data in this process, and of a map, of which the record has one line."""
    monkeypatch.setenv("ROUNDWEAVE_TRACEBACK", "")
    mine = own(FAILING)
    line = ["train", f"--{where}", f"{mine}:{where}", "--model", "logistic", "--executor", "inline", "-q"]
    line += ["--batch-size", "25", "--local-steps", "1"]
    code, _, short = run(capsys, *line)
    assert (code, "Traceback" in short) == (1, False)
    code, _, whole = run(capsys, *line[:1], "--traceback", *line[1:])
    assert code == 1
    assert whole.count(", in deep") >= 3
    assert "KeyError: 'nothing'" in whole
    assert whole.splitlines()[-1] == short.splitlines()[-1]


def test_no_number_and_no_name_is_cut_in_a_narrow_terminal(train, capsys, monkeypatch) -> None:
    name = "a-night-of-training-on-everything-there-is-and-more-2026-11-27"
    history = train(partitions=3, rounds=2, name=name, scores="accuracy,top5", score_partitions=0.2).history()
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True)
    monkeypatch.setenv("TTY_COMPATIBLE", "0")  # no codes for colours among the texts
    for width in (80, 40, 20):
        monkeypatch.setenv("COLUMNS", str(width))
        shown = said(capsys, "show", name)
        words = shown.replace(".zarr", "").split()
        for column in ("loss", "spread_loss", "worst_top5", "train_loss"):
            form = ".2%" if column == "worst_top5" else ".4f"
            assert {format(number, form) for number in history[column][1:]} <= set(words)
        table = shown[shown.index("\nround  ") :].splitlines()
        assert max(map(len, table)) <= width
        listed = said(capsys, "runs")
        assert "…" not in shown + listed
        assert max(map(len, listed.splitlines())) <= width
        assert name in "".join(line[: width // 2].strip() for line in listed.splitlines())
        assert f"{history['loss'][2]:.4f}" in listed.split()


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("adam", "fed_adam, local_steps 2, batch_size 8"),
        ("momentum", "fed_avg, local_steps 2, batch_size 8, outer_momentum 0.5"),
        ("cohort", "fed_avg, local_steps 2, batch_size 8, optimizer AdamW, optimizer_state carried"),
    ],
)
def test_an_algorithm_is_its_name_and_what_is_not_as_by_default(stored, capsys, name, shown) -> None:
    stored(name)
    (line,) = [line for line in said(capsys, "show", name).splitlines() if line.startswith("algorithm")]
    assert sorted(line.removeprefix("algorithm").strip().split(", ")) == sorted(shown.split(", "))
