"""`roundweave prune`, `cp`, `rm` and `verify`: what they say, what they leave, and their exit codes."""

from __future__ import annotations

import errno
import json
import os
import sys
from io import StringIO
from pathlib import Path

import pytest

from roundweave.flows.stored import Run
from tests.flows.command.in_process import refused, run

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
    again = refused(capsys, "cp", "first", f"{tmp_path}/{target}")
    assert again == (1, f"{copy} exists already; give the copy another place")


def test_the_last_line_of_cp_is_a_run_to_verify(first, capsys, tmp_path: Path) -> None:
    code, out, _ = run(capsys, "cp", "first", str(tmp_path / "there"))
    assert (code, out.splitlines()[-1]) == (0, str(tmp_path / "there/first.zarr"))
    assert run(capsys, "verify", out.splitlines()[-1])[0] == 0
    code, line = refused(capsys, "verify", str(tmp_path / "there"))
    assert (code, "it holds first; name one, as " in line) == (4, True)


def test_rm_deletes_a_run_where_it_is_told_to(first, capsys) -> None:
    assert refused(capsys, "rm", "first") == (2, "first has 4 rounds; give --yes to delete it")
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
    code, line = refused(capsys, "rm", "link", "--yes")
    assert code == 2
    assert "is a link to a run; delete the link, or give the path of the run" in line
    assert Run(first.path).done == 4


def test_what_is_not_there_is_said_in_one_line(first, capsys) -> None:
    for arguments, said in (
        (("prune", "first", "--keep", "lats:3"), "keep 'lats:3' is no policy; did you mean last?"),
        (("cp", "frist", "elsewhere"), "did you mean first?"),
        (("rm", "frist", "--yes"), "did you mean first?"),
        (("verify", "nowhere"), "no run 'nowhere' under "),
    ):
        code, line = refused(capsys, *arguments)
        assert code in (1, 2, 4)
        assert said in line


# `roundweave verify`.

SHORT = {"model": "logistic", "partitions": 2, "rounds": 2, "name": "first"}


def test_a_sound_run_is_told_with_its_chain(train, capsys) -> None:
    chain = train(**SHORT).chain
    code, out, err = run(capsys, "verify", "first")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("first: sound; 2 rounds, ")
    assert out.splitlines()[1:] == [f"chain {chain}"]


def test_each_finding_is_a_line_with_its_path_and_the_exit_code_is_3(train, capsys, flip) -> None:
    path = train(**SHORT).path
    flip(path / "params/1.weight/c/1/0/0")
    (path / "commits/added").write_text("x")
    code, out, err = run(capsys, "verify", str(path))
    assert (code, err) == (3, "")
    first, second, last, _ = out.splitlines()
    assert first == "commits/added: it does not belong to the run"
    assert second.startswith("params/1.weight/c/1/0/0: the stored bytes are not those that were written")
    assert last.startswith("first: 2 found; 2 rounds, ")
    code, out, _ = run(capsys, "verify", "first", "--json")
    told = json.loads(out)
    assert (code, told["sound"], [each["path"] for each in told["findings"]]) == (
        3,
        False,
        ["commits/added", "params/1.weight/c/1/0/0"],
    )


def test_a_run_that_cannot_be_opened_is_verified_too(train, capsys, flip) -> None:
    flip(train(**SHORT | {"rounds": 1}).path / "zarr.json")
    code, out, err = run(capsys, "verify", "first")
    assert (code, err) == (3, "")
    assert out.startswith("zarr.json: ")


def test_what_is_no_run_or_cannot_be_read_has_an_exit_code_of_its_own(
    train, tmp_path, capsys, monkeypatch
) -> None:
    train(**SHORT)
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
        code, line = refused(capsys, "verify", "first")
    assert (code, "Input/output error" in line) == (5, True)
    code, out, _ = run(capsys, "verify", "nowhere", "--json")
    assert (code, json.loads(out)["status"]) == (4, "failed")
    assert refused(capsys, "verify", "first", "--expect", "12")[0] == 2


def test_an_expected_chain_is_that_of_a_round_or_a_finding(train, capsys) -> None:
    train(**SHORT | {"rounds": 1})
    chain = Run(train(**SHORT | {"rounds": 3}).path)._store.log.chain(1)
    code, out, _ = run(capsys, "verify", "first", "--expect", chain)
    assert (code, out.splitlines()[-1]) == (0, "the expected chain vouches for rounds 0 to 1")
    code, out, _ = run(capsys, "verify", "first", "--expect", "0" * 64)
    assert code == 3
    assert f"{'0' * 64} is that of no round of this history" in out
    said = "'12' is no chain, which has 64 hexadecimal digits; `roundweave verify` prints it"
    assert refused(capsys, "verify", "first", "--expect", "12") == (2, said)
