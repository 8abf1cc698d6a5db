"""`roundweave prune`, `cp` and `rm`: what they say, and what they leave."""

from __future__ import annotations

import json
import sys
from io import StringIO
from pathlib import Path

import pytest

from flows.stored import Run
from storage.places.local import LocalPlace
from storage.rounds.lease import hold_lease
from tests.flows.command.in_process import run

FIELDS = {"model": "logistic", "partitions": 2, "local_steps": 1, "rounds": 4, "name": "first"}


@pytest.fixture
def first(train) -> Run:
    return train(**FIELDS)


def test_prune_says_what_went_and_a_dry_one_what_would(first, capsys) -> None:
    code, out, _ = run(capsys, "prune", "first", "--keep", "last:2", "--dry-run")
    assert (code, out) == (0, "first: of rounds 1 to 2 would go 0.0156 MB\n")
    assert first.kept == [0, 1, 2, 3, 4]
    code, out, _ = run(capsys, "prune", "first", "--keep", "last:2", "--json")
    bytes_gone = 2 * 3 * (650 * 4) + 2 * (2 + 2) * 4
    answer = {"run": "first", "path": first.address, "rounds": [1, 2], "bytes": bytes_gone, "dry_run": False}
    assert (code, json.loads(out)) == (0, answer)
    assert first.kept == [0, 3, 4]
    assert run(capsys, "prune", "first", "--keep", "last:2")[1] == (
        "first: with --keep last:2 nothing is to be pruned\n"
    )


@pytest.mark.parametrize("target", ["there", "there/", "there/other.zarr"])
def test_cp_copies_to_a_root_or_a_place(first, capsys, tmp_path: Path, target: str) -> None:
    copy = tmp_path / ("there/other.zarr" if "other" in target else "there/first.zarr")
    code, out, _ = run(capsys, "cp", "first", f"{tmp_path}/{target}", "--json")
    answer = json.loads(out)
    assert (code, answer["copy"], answer["chain"]) == (0, str(copy), first._store.log.chain(4))
    assert Run(copy).digest == first.digest
    code, _, err = run(capsys, "cp", "first", f"{tmp_path}/{target}")
    assert (code, err) == (1, f"error: {copy} exists already; give the copy another place\n")


def test_the_last_line_of_cp_is_a_run_to_verify(first, capsys, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "cp", "first", str(tmp_path / "there"))
    assert (code, out.splitlines()[-1]) == (0, str(tmp_path / "there/first.zarr"))
    assert run(capsys, "verify", out.splitlines()[-1])[0] == 0
    code, _, err = run(capsys, "verify", str(tmp_path / "there"))
    assert (code, err.count("\n")) == (1, 1)
    assert "it holds first; name one, as " in err


def test_rm_deletes_a_run_where_it_is_told_to(first, capsys) -> None:
    code, _, err = run(capsys, "rm", "first")
    assert (code, err) == (2, "error: first has 4 rounds; give --yes to delete it\n")
    assert first.path.exists()
    code, out, _ = run(capsys, "rm", "first", "--yes")
    assert (code, out) == (0, f"first: deleted from {first.address}\n")
    assert not first.path.exists()


@pytest.mark.parametrize(("answer", "there", "code"), [("n\n", True, 1), ("y\n", False, 0)])
def test_rm_asks_at_a_terminal(first, capsys, monkeypatch, answer: str, there: bool, code: int) -> None:
    terminal = StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert run(capsys, "rm", "first")[0] == code
    assert first.path.exists() == there


def test_rm_deletes_no_run_through_a_link(first, capsys, tmp_path: Path) -> None:
    (tmp_path / "runs/link.zarr").symlink_to(first.path)
    code, _, err = run(capsys, "rm", "link", "--yes")
    assert code == 2
    assert "is a link to a run; delete the link, or give the path of the run" in err
    assert Run(first.path).done == 4


@pytest.mark.parametrize(
    "arguments",
    [("prune", "--keep", "last:1"), ("cp", "elsewhere"), ("rm", "--yes")],
    ids=lambda a: a[0],
)
def test_a_run_that_is_written_is_left_alone(first, capsys, arguments: tuple[str, ...]) -> None:
    command, *others = arguments
    with hold_lease(LocalPlace(first.path), "mine"):
        code, _, err = run(capsys, command, "first", *others)
    assert code == 1
    assert "is being written by process" in err
    assert err.count("\n") == 1
    assert Run(first.path).kept == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("prune", "first", "--keep", "lats:3"), "keep 'lats:3': nothing is kept so; did you mean last?"),
        (("cp", "frist", "elsewhere"), "did you mean first?"),
        (("rm", "frist", "--yes"), "did you mean first?"),
    ],
)
def test_what_is_not_there_is_said_in_one_line(first, capsys, arguments, said: str) -> None:
    code, _, err = run(capsys, *arguments)
    assert code in (1, 2)
    assert said in err
    assert err.count("\n") == 1
