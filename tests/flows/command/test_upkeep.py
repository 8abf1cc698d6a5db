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
from tests.flows.command.in_process import refused, run, said, told

NIGHTS = ["night-1", "night-2", "night-3", "night-4", "other"]
SHORT = {"model": "logistic", "partitions": 2, "local_steps": 1, "rounds": 1}


@pytest.fixture
def four(stored) -> Run:
    return stored("four")


def test_prune_says_what_went_and_a_dry_one_what_would(four, capsys) -> None:
    dry = said(capsys, "prune", "four", "--keep", "last:2", "--dry-run")
    assert (dry, four.kept) == ("four: would delete 0.0156 MB of rounds 1 to 2\n", [0, 1, 2, 3, 4])
    bytes_gone = 2 * 3 * (650 * 4) + 2 * (2 + 2) * 4
    answer = {"run": "four", "path": four.address, "rounds": [1, 2], "bytes": bytes_gone, "dry_run": False}
    assert told(capsys, "prune", "four", "--keep", "last:2") == answer
    assert four.kept == [0, 3, 4]
    assert said(capsys, "prune", "four", "--keep", "last:2") == ("four: nothing to prune with --keep last:2\n")


@pytest.mark.parametrize("target", ["there", "there/", "there/other.zarr"])
def test_cp_copies_to_a_root_or_a_place_and_ends_with_a_run_to_verify(four, capsys, tmp_path, target: str) -> None:
    copy = tmp_path / ("there/other.zarr" if "other" in target else "there/four.zarr")
    assert said(capsys, "cp", "four", f"{tmp_path}/{target}").splitlines()[-1] == str(copy)
    assert Run(copy).digest == four.digest
    said(capsys, "verify", str(copy))
    again = refused(capsys, "cp", "four", f"{tmp_path}/{target}")
    assert again == (1, f"{copy} exists already; give the copy another place")
    code, line = refused(capsys, "verify", str(tmp_path / "there"))
    assert (code, f"it holds {copy.stem}; name one, as " in line) == (4, True)


def test_cp_in_json(four, capsys, tmp_path: Path) -> None:
    answer = told(capsys, "cp", "four", f"{tmp_path}/there")
    assert (answer["copy"], answer["chain"]) == (str(tmp_path / "there/four.zarr"), four._store.log.chain(4))


def test_rm_deletes_a_run_where_it_is_told_to(four, capsys) -> None:
    size = decimal(stored_bytes(LocalPlace(four.path)))
    says = f"four, {size} would be deleted; give --yes to delete, or --dry-run to see which"
    assert refused(capsys, "rm", "four") == (2, says)
    assert run(capsys, "rm", "four", "--dry-run")[:2] == (0, f"four: would be deleted, {size}\n")
    assert four.path.exists()
    assert run(capsys, "rm", "four", "--yes")[:2] == (0, f"four: deleted, {size}\n")
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
    going = [name for name in NIGHTS if lines[name].startswith("would be deleted")]
    assert (len(going), out.splitlines()[-1].startswith("3 of 5 runs would be deleted, ")) == (3, True)
    assert refused(capsys, *asked)[0] == 2
    code, out, _ = run(capsys, *asked, "--yes", "--json")
    gone = json.loads(out)
    assert (code, sorted(gone["removed"]), sorted(gone["stay"])) == (0, sorted(going), sorted([best, "night-4"]))
    assert gone["bytes"] == sum(gone["removed"].values()) > 0
    assert [path.exists() for path in paths.values()] == [name in (best, "night-4") for name in NIGHTS]
    assert run(capsys, "rm", "night-4", "--yes")[0] == 0  # by its name a damaged one, too
    assert [name for name, path in paths.items() if path.exists()] == [best]


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (("rm", "nothing-*"), "no run nothing-* under "),
        (("rm", "fuor", "--yes"), "did you mean four?"),
        (("rm", "four", "--older-than", "14"), "--older-than '14' is no span of time; give one such as 90s"),
        (("rm", "four", "--older-than", "0d"), "--older-than '0d' is no span of time"),
        (("rm", "four", "--keep-best", "1", "--by", "acc"), "no complete run has the score 'acc'; "),
        (("prune", "four", "--keep", "lats:3"), "keep 'lats:3' is no policy; did you mean last?"),
        (("cp", "fuor", "elsewhere"), "did you mean four?"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_line(four, capsys, arguments: tuple[str, ...], says: str) -> None:
    code, line = refused(capsys, *arguments)
    assert (code in (1, 2), says in line) == (True, True), line
    assert four.path.exists()


def test_rm_by_age_leaves_what_is_younger(four, capsys) -> None:
    out = said(capsys, "rm", "*", "--older-than", "1h", "--yes")
    assert (out, four.path.exists()) == ("four: stays: it is younger than that\n", True)


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


# `roundweave verify`.


def test_a_sound_run_is_told_with_its_chain(four, capsys) -> None:
    first, chain = said(capsys, "verify", "four").splitlines()
    assert (first.startswith("four: sound; 4 rounds, "), chain) == (True, f"chain {four.chain}")


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
    found = json.loads(out)
    assert (code, found["sound"]) == (3, False)
    assert [each["path"] for each in found["findings"]] == ["commits/added", "params/1.weight/c/1/0/0"]


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


def test_an_expected_chain_is_that_of_a_round_or_a_finding(four, capsys) -> None:
    chain = four._store.log.chain(1)
    code, out, _ = run(capsys, "verify", "four", "--expect", chain)
    assert (code, out.splitlines()[-1]) == (0, "the expected chain vouches for rounds 0 to 1")
    code, out, _ = run(capsys, "verify", "four", "--expect", "0" * 64)
    assert code == 3
    assert f"{'0' * 64} is that of no round of this history" in out
    says = "'12' is no chain, which has 64 hexadecimal digits; `roundweave verify` prints it"
    assert refused(capsys, "verify", "four", "--expect", "12") == (2, says)
