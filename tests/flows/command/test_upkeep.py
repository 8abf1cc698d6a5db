"""`roundweave prune`, `cp`, `rm` and `verify`: what they say, what they leave, and their exit codes."""

from __future__ import annotations

import errno
import json
import os
import sys
from io import StringIO
from pathlib import Path

import pytest
from rich.filesize import decimal

from roundweave.flows.stored import Run
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.runs.listing import stored_bytes
from tests.flows.command.in_process import refused, run, said

NIGHTS = ["night-1", "night-2", "night-3", "night-4", "other"]
SHORT = {"model": "logistic", "partitions": 2, "local_steps": 1, "rounds": 1}


@pytest.fixture
def four(stored) -> Run:
    return stored("four")


def test_prune_says_what_went_and_a_dry_one_what_would(four, capsys) -> None:
    code, out, _ = run(capsys, "prune", "four", "--keep", "last:2", "--dry-run")
    assert (code, out) == (0, "four: of rounds 1 to 2 would go 0.0156 MB\n")
    assert four.kept == [0, 1, 2, 3, 4]
    code, out, _ = run(capsys, "prune", "four", "--keep", "last:2", "--json")
    bytes_gone = 2 * 3 * (650 * 4) + 2 * (2 + 2) * 4
    answer = {"run": "four", "path": four.address, "rounds": [1, 2], "bytes": bytes_gone, "dry_run": False}
    assert (code, json.loads(out)) == (0, answer)
    assert four.kept == [0, 3, 4]
    assert said(capsys, "prune", "four", "--keep", "last:2") == (
        "four: with --keep last:2 nothing is to be pruned\n"
    )


@pytest.mark.parametrize("target", ["there", "there/", "there/other.zarr"])
def test_cp_copies_to_a_root_or_a_place(four, capsys, tmp_path: Path, target: str) -> None:
    copy = tmp_path / ("there/other.zarr" if "other" in target else "there/four.zarr")
    code, out, _ = run(capsys, "cp", "four", f"{tmp_path}/{target}", "--json")
    answer = json.loads(out)
    assert (code, answer["copy"], answer["chain"]) == (0, str(copy), four._store.log.chain(4))
    assert Run(copy).digest == four.digest
    again = refused(capsys, "cp", "four", f"{tmp_path}/{target}")
    assert again == (1, f"{copy} exists already; give the copy another place")


def test_the_last_line_of_cp_is_a_run_to_verify(four, capsys, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "cp", "four", str(tmp_path / "there"))
    assert (code, out.splitlines()[-1]) == (0, str(tmp_path / "there/four.zarr"))
    said(capsys, "verify", out.splitlines()[-1])
    code, line = refused(capsys, "verify", str(tmp_path / "there"))
    assert (code, "it holds four; name one, as " in line) == (4, True)


def test_rm_deletes_a_run_where_it_is_told_to(four, capsys) -> None:
    size = decimal(stored_bytes(LocalPlace(four.path)))
    says = f"four, {size} would go; give --yes to delete, or --dry-run to see which"
    assert refused(capsys, "rm", "four") == (2, says)
    assert run(capsys, "rm", "four", "--dry-run")[:2] == (0, f"four: would go, {size}\n")
    assert four.path.exists()
    assert run(capsys, "rm", "four", "--yes")[:2] == (0, f"four: went, {size}\n")
    assert not four.path.exists()


def test_rm_takes_names_and_patterns_and_says_a_line_for_each_and_a_sum(
    train, capsys, tmp_path: Path, flip
) -> None:
    paths = {name: train(**SHORT, name=name, lr=lr).path for lr, name in enumerate(NIGHTS, 1)}
    flip(paths["night-4"] / "zarr.json")
    best = min(["night-1", "night-2", "night-3"], key=lambda name: Run(paths[name]).round(-1).score.loss)
    asked = ("rm", "night-*", "other", "--keep-best", "1")
    code, out, _ = run(capsys, *asked, "--dry-run")
    lines = dict(line.split(": ", 1) for line in out.splitlines()[:-1])
    assert (code, sorted(lines)) == (0, sorted(NIGHTS))
    assert lines[best] == "stays: it is one of the best 1 by loss"
    assert lines["night-4"].startswith("stays: ")
    going = [name for name in NIGHTS if lines[name].startswith("would go")]
    assert (len(going), out.splitlines()[-1].startswith("3 of 5 runs would go, ")) == (3, True)
    assert refused(capsys, *asked)[0] == 2
    code, out, _ = run(capsys, *asked, "--yes", "--json")
    told = json.loads(out)
    assert (code, sorted(told["removed"]), sorted(told["stay"])) == (0, sorted(going), sorted([best, "night-4"]))
    assert told["bytes"] == sum(told["removed"].values()) > 0
    assert [path.exists() for path in paths.values()] == [name in (best, "night-4") for name in NIGHTS]
    assert run(capsys, "rm", "night-4", "--yes")[0] == 0  # by its name a damaged one, too
    assert [name for name, path in paths.items() if path.exists()] == [best]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("nothing-*",), "no run nothing-* under "),
        (("four", "--older-than", "14"), "--older-than '14' is no span of time; give one such as 90s"),
        (("four", "--older-than", "0d"), "--older-than '0d' is no span of time"),
        (("four", "--keep-best", "1", "--by", "acc"), "no complete run has the score 'acc'; "),
    ],
)
def test_rm_refuses_what_it_cannot_mean_in_one_line(four, capsys, arguments: tuple[str, ...], says: str) -> None:
    code, line = refused(capsys, "rm", *arguments, "--yes")
    assert (code in (1, 2), line.startswith(says)) == (True, True), line
    assert four.path.exists()


def test_rm_by_age_leaves_what_is_younger(four, capsys) -> None:
    assert run(capsys, "rm", "*", "--older-than", "1h", "--yes")[:2] == (
        0,
        "four: stays: it is younger than that\n",
    )
    assert four.path.exists()


def test_rm_of_a_run_in_training_is_refused_by_name_and_passed_over_by_pattern(four, capsys) -> None:
    with hold_lease(LocalPlace(four.path), "mine"):
        code, line = refused(capsys, "rm", "four", "--yes")
        assert (code, "is being written by process" in line) == (2, True)
        code, out, _ = run(capsys, "rm", "fou*", "--yes")
        assert (code, "is being written by process" in out) == (0, True)
    said(capsys, "verify", "four")


@pytest.mark.parametrize(("answer", "there", "code"), [("n\n", True, 1), ("y\n", False, 0)])
def test_rm_asks_at_a_terminal(four, capsys, monkeypatch, answer: str, there: bool, code: int) -> None:
    terminal = StringIO(answer)
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stdin", terminal)
    assert run(capsys, "rm", "four")[0] == code
    assert four.path.exists() == there


def test_rm_deletes_no_run_through_a_link(four, capsys, tmp_path: Path) -> None:
    (tmp_path / "runs/link.zarr").symlink_to(four.path)
    code, line = refused(capsys, "rm", "link", "--yes")
    assert code == 2
    assert "is a link to a run; delete the link, or give the path of the run" in line
    assert Run(four.path).done == 4


def test_what_is_not_there_is_said_in_one_line(four, capsys) -> None:
    for arguments, says in (
        (("prune", "four", "--keep", "lats:3"), "keep 'lats:3' is no policy; did you mean last?"),
        (("cp", "fuor", "elsewhere"), "did you mean four?"),
        (("rm", "fuor", "--yes"), "did you mean four?"),
        (("verify", "nowhere"), "no run 'nowhere' under "),
    ):
        code, line = refused(capsys, *arguments)
        assert code in (1, 2, 4)
        assert says in line


# `roundweave verify`.


def test_a_sound_run_is_told_with_its_chain(four, capsys) -> None:
    code, out, err = run(capsys, "verify", "four")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("four: sound; 4 rounds, ")
    assert out.splitlines()[1:] == [f"chain {four.chain}"]


def test_each_finding_is_a_line_with_its_path_and_the_exit_code_is_3(four, capsys, flip) -> None:
    path = four.path
    flip(path / "params/1.weight/c/1/0/0")
    (path / "commits/added").write_text("x")
    code, out, err = run(capsys, "verify", str(path))
    assert (code, err) == (3, "")
    first, second, last, _ = out.splitlines()
    assert first == "commits/added: it does not belong to the run"
    assert second.startswith("params/1.weight/c/1/0/0: the stored bytes are not those that were written")
    assert last.startswith("four: 2 found; 4 rounds, ")
    code, out, _ = run(capsys, "verify", "four", "--json")
    told = json.loads(out)
    assert (code, told["sound"], [each["path"] for each in told["findings"]]) == (
        3,
        False,
        ["commits/added", "params/1.weight/c/1/0/0"],
    )


def test_a_run_that_cannot_be_opened_is_verified_too(four, capsys, flip) -> None:
    flip(four.path / "zarr.json")
    code, out, err = run(capsys, "verify", "four")
    assert (code, err) == (3, "")
    assert out.startswith("zarr.json: ")


def test_what_is_no_run_or_cannot_be_read_has_an_exit_code_of_its_own(four, tmp_path, capsys, monkeypatch) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/file").write_text("x")
    for place in ("nowhere", str(tmp_path), str(tmp_path / "other")):
        assert refused(capsys, "verify", place)[0] == 4
    opened = os.open

    def failing(path: object, *given: object, **named: object) -> int:
        if path == "0":
            raise OSError(errno.EIO, "Input/output error")
        return opened(path, *given, **named)

    with monkeypatch.context() as patch:
        patch.setattr(os, "open", failing)
        code, line = refused(capsys, "verify", "four")
    assert (code, "Input/output error" in line) == (5, True)
    code, out, _ = run(capsys, "verify", "nowhere", "--json")
    assert (code, json.loads(out)["status"]) == (4, "failed")
    assert refused(capsys, "verify", "four", "--expect", "12")[0] == 2


def test_an_expected_chain_is_that_of_a_round_or_a_finding(four, capsys) -> None:
    chain = four._store.log.chain(1)
    code, out, _ = run(capsys, "verify", "four", "--expect", chain)
    assert (code, out.splitlines()[-1]) == (0, "the expected chain vouches for rounds 0 to 1")
    code, out, _ = run(capsys, "verify", "four", "--expect", "0" * 64)
    assert code == 3
    assert f"{'0' * 64} is that of no round of this history" in out
    said = "'12' is no chain, which has 64 hexadecimal digits; `roundweave verify` prints it"
    assert refused(capsys, "verify", "four", "--expect", "12") == (2, said)
