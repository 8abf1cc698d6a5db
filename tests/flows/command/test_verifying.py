"""`roundweave verify`: its exit codes, a line for each finding, and an object for machines."""

from __future__ import annotations

import json

from flows.stored import Run
from tests.flows.command.in_process import run


def test_a_sound_run_is_told_with_its_chain(train, capsys) -> None:
    chain = train(model="logistic", partitions=2, rounds=2, name="first").chain
    code, out, err = run(capsys, "verify", "first")
    assert (code, err) == (0, "")
    assert out.splitlines()[0].startswith("first: sound; 2 rounds, ")
    assert out.splitlines()[1:] == [f"chain {chain}"]


def test_each_finding_is_a_line_with_its_path_and_the_exit_code_is_1(train, capsys, flip) -> None:
    path = train(model="logistic", partitions=2, rounds=2, name="first").path
    flip(path / "params/1.weight/c/1/0/0")
    (path / "commits/added").write_text("x")
    code, out, err = run(capsys, "verify", str(path))
    assert (code, err) == (1, "")
    first, second, last, _ = out.splitlines()
    assert first == "commits/added: it does not belong to the run"
    assert second.startswith("params/1.weight/c/1/0/0: the stored bytes are not those that were written")
    assert last.startswith("first: 2 found; 2 rounds, ")
    code, out, _ = run(capsys, "verify", "first", "--json")
    told = json.loads(out)
    assert (code, told["sound"], [each["path"] for each in told["findings"]]) == (
        1,
        False,
        ["commits/added", "params/1.weight/c/1/0/0"],
    )


def test_a_run_that_cannot_be_opened_is_verified_too(train, capsys, flip) -> None:
    flip(train(model="logistic", partitions=2, rounds=1, name="first").path / "zarr.json")
    code, out, err = run(capsys, "verify", "first")
    assert (code, err) == (1, "")
    assert out.startswith("zarr.json: ")


def test_an_expected_chain_is_that_of_a_round_or_a_finding(train, capsys) -> None:
    train(model="logistic", partitions=2, rounds=1, name="first")
    chain = Run(train(model="logistic", partitions=2, rounds=3, name="first").path)._store.log.chain(1)
    code, out, _ = run(capsys, "verify", "first", "--expect", chain)
    assert (code, out.splitlines()[-1]) == (0, "the expected chain vouches for rounds 0 to 1")
    code, out, _ = run(capsys, "verify", "first", "--expect", "0" * 64)
    assert code == 1
    assert f"{'0' * 64} is that of no round of this history" in out
    code, _, err = run(capsys, "verify", "first", "--expect", "12")
    assert (code, err) == (
        2,
        "error: '12' is no chain, which has 64 hexadecimal digits; `roundweave verify` prints it\n",
    )


def test_what_is_no_run_is_told_in_a_line(capsys) -> None:
    code, _, err = run(capsys, "verify", "nowhere")
    assert code == 1
    assert err.startswith("error: no run 'nowhere' under ")
