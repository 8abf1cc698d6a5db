"""Two runs are compared by their records; the first tensor that differs is named, with its largest difference."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

import roundweave as rw
from roundweave.storage.rounds.store import RoundStore
from tests.flows.command.in_process import run as command
from tests.flows.evidence.towards import MINE
from tests.runs import RUNS

PLAIN = RUNS["plain"]


def copy(run: rw.Run, name: str, **changed: object) -> None:
    """A run with the same rounds, whose records say something else of round 2."""
    store = RoundStore(run.path)
    kept = {n: v for n, v in store.attributes.items() if n not in ("version", "digest", "schema", "coordinates")}
    path = run.path.with_name(f"{name}.zarr")
    new = RoundStore.create(path, store.schema, run.rounds, kept, store.tensors.read_state(0))
    for number in run.committed[1:]:
        commit = run.round(number).commit
        for partition in commit.updates:
            new.tensors.write_updates(number, {partition: store.tensors.read_update(commit, partition)})
            if commit.updates[partition].match:
                new.tensors.write_matches(number, {partition: store.tensors.read_match(commit, partition)})
        new.tensors.write_state(store.tensors.read_state(commit))
        new.commit(replace(commit, **changed) if number == 2 else commit)


def test_runs_of_the_same_experiment_are_equal_however_they_were_run(stored, train) -> None:
    stored("plain")
    train(**PLAIN, name="b", window=3, evaluate_every=2)
    difference = rw.diff("plain", "b")
    assert difference.equal
    assert (difference.compared, difference.config, difference.round) == (4, (), None)


def test_the_first_field_round_and_tensor_are_named_with_the_largest_difference(train, own) -> None:
    fields = {"model": "linear", "dtype": "float64", "split": "contiguous", "rounds": 3}
    fields |= {"partitions": 4, "algorithm": f"{own(MINE.format(targets=[0.0]), 'same')}:algorithm"}
    for name, targets in (("a", [1.0, 2.0, 3.0, 4.0]), ("b", [1.0, 2.0, 3.5, 4.25])):
        train(**fields, data=f"{own(MINE.format(targets=targets), name)}:data", name=name)
    found = rw.diff("a", "b")
    one, other = (rw.open_run(name).attributes["data"]["digest"][:12] for name in "ab")
    assert found.config == (f"data: other examples, of digest {other} instead of {one}",)
    assert (found.round, found.compared, found.equal) == (1, 1, False)
    assert (found.what, found.tensor) == ("the update of partition 2", "updates/1.weight")
    assert found.largest == pytest.approx(0.5, abs=1e-12)
    train(**fields, data="digits", momentum=0.3, name="c")
    assert "momentum default -> 0.3" in rw.diff("a", "c").config


@pytest.mark.parametrize(
    ("change", "config", "round", "what", "detail"),
    [
        ({"quorum": 2}, "quorum 1 -> 2", None, "", ""),  # it changes no bits, and is a difference all the same
        ({"rounds": 2}, "", 3, "b ends with round 2", ""),
        ({"dtype": "float64"}, "dtype float32 -> float64", 0, "the state", "float32 (6,) or float64 (6,)"),
        ({"outer_momentum": 0.5}, "outer_momentum 0.0 -> 0.5", 0, "the state", "none or float32 ("),
    ],
)
def test_the_field_and_the_first_round_that_differs_are_named(
    stored, train, change, config, round, what, detail
) -> None:
    stored("plain")
    train(**PLAIN | change, name="b")
    found = rw.diff("plain", "b")
    assert (found.equal, found.config, found.round, found.what) == (
        False,
        (config,) if config else (),
        round,
        what,
    )
    assert found.detail.startswith(detail)
    assert (found.compared, found.largest) == (4 if round is None else round, None)


def test_a_reduce_that_gives_another_state_of_equal_updates_is_found_in_the_state(stored, train) -> None:
    stored("plain")
    train(**PLAIN, name="b", reduce="median")
    found = rw.diff("plain", "b")
    assert found.config == ("reduce None -> median",)
    assert (found.round, found.what) == (1, "the state")
    one, other = (rw.open_run(name).round(1).tensor(found.tensor) for name in ("plain", "b"))
    assert found.largest == (one.double() - other.double()).abs().max().item() > 0


@pytest.mark.parametrize(
    ("name", "change", "what", "detail"),
    [
        ("plain", {"refused": "too large"}, "the update of partition 1", "accepted with weight {} or too large"),
        (
            "matched",
            {"match": "0" * 64},
            "how the units of partition 1 were matched",
            "the match of partition 1 in",
        ),
    ],
)
def test_another_judgement_or_match_of_the_same_update_is_named(stored, name, change, what, detail) -> None:
    run = stored(name)
    updates = run.round(2).commit.updates
    copy(run, "b")
    assert rw.diff(name, "b").equal
    copy(run, "c", updates=updates | {1: replace(updates[1], **change)})
    found = rw.diff(name, "c")
    assert (found.round, found.what) == (2, what)
    assert detail.format(updates[1].weight) in found.detail


def test_a_lost_record_is_named(stored) -> None:
    run = stored("plain")
    copy(run, "b")
    run._place.delete("commits/1.json")
    for runs in (("plain", "b"), ("b", "plain")):
        found = rw.diff(*runs)
        assert (found.round, found.what, found.compared) == (1, "its record is lost", 1)
        assert f"no committed round 1 in {run.path}; " in found.detail


def test_of_tensors_that_are_gone_the_records_are_compared(stored, train) -> None:
    stored("plain")
    train(**PLAIN, name="b", lr=0.2)._place.delete("updates/float32/c/1/0/0")
    found = rw.diff("plain", "b")
    assert (found.round, found.what, found.tensor) == (1, "the update of partition 0", None)
    assert found.detail.startswith("its numbers cannot be read: ")


def test_the_command_says_it_in_lines_and_by_its_exit_code(stored, train, capsys) -> None:
    stored("plain")
    train(**PLAIN, name="b", lr=0.2)
    equal = "plain and plain are equal: experiment, updates and states of 4 rounds\n"
    assert command(capsys, "diff", "plain", "plain")[:2] == (0, equal)
    code, out, _ = command(capsys, "diff", "plain", "b")
    first, second = out.splitlines()
    assert (code, first) == (1, "config: lr 0.1 -> 0.2")
    assert second.startswith("round 1: the update of partition 0: updates/fc1.weight, by 0.")
    code, out, _ = command(capsys, "diff", "plain", "b", "--json")
    summary = json.loads(out)
    assert (code, summary["equal"], summary["round"], summary["config"]) == (1, False, 1, ["lr 0.1 -> 0.2"])
