"""Law 4: replaying a stored round gives the stored bits; else it is said what differs, and how far."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

import roundweave as rw
from roundweave.flows.evidence.replaying import Replay
from roundweave.storage.errors import DataError
from roundweave.storage.hierarchy.zarr_format import NAME
from roundweave.storage.rounds.log import CommitLog
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.values.digests import state_digest, tensor_digests, update_digest
from roundweave.storage.values.hashing import json_digest
from roundweave.tasks.algorithms.table import ALGORITHMS
from tests.counting import counting
from tests.flows.command.in_process import refused
from tests.flows.command.in_process import run as command
from tests.rows import but_first, second
from tests.runs import RUNS

PLAIN = RUNS["plain"]
LOCAL = {"local_steps": 2, "batch_size": 8}
SMALL = {name: value for name, value in PLAIN.items() if name not in LOCAL}


@pytest.fixture
def on_cluster(client) -> Iterator[None]:
    """Two workers, for all that replays on a cluster here."""
    with client.as_current():
        yield


@pytest.fixture
def run(stored) -> rw.Run:
    return stored("plain")


def statuses(replay: Replay) -> list[str]:
    return [result.status for result in replay.results]


def assert_bit_identical(run, rounds: int = 3) -> None:
    """Every round, in this process and on a cluster."""
    for executor in ("inline", "graph"):
        replay = rw.open_run(run.path).replay("all", executor=executor)
        assert statuses(replay) == ["bit-identical"] * rounds, replay
        assert (replay.key, replay.exit_code) == ({}, 0)


# Equal bits.


@pytest.mark.parametrize("algorithm", but_first(["fed_buff"], ALGORITHMS))
def test_every_algorithm_goes_on_is_sound_and_replays_to_the_bit(train, on_cluster, algorithm: str) -> None:
    fields = {name: value for name, value in LOCAL.items() if name in ALGORITHMS[algorithm].options}
    fields |= {"resplit_every": 2} if ALGORITHMS[algorithm].when is rw.Synchronous else {}
    for rounds in (2, 3):
        run = train(**SMALL | {"rounds": rounds}, **fields, algorithm=algorithm, name="run")
        seen = run.verify()
        assert (seen.findings, seen.notes, seen.rounds) == ((), (), rounds)
    assert_bit_identical(run)


KINDS = {
    "bfloat16": {"dtype": "bfloat16"},
    "dropout": {"model_options": {"hidden": 6, "dropout": 0.3}},
    "two threads": {"threads": 2},
    "robust": {"reduce": "trimmed_mean:1"},
    "matched, mixtures": {"algorithm": "matched", "init": "per-partition", "match": "weights", "soft": 2},
    "schedules": {"lr_schedule": "cosine", "warmup": 1, "outer_momentum": 0.9},
    "a source each": {"data": ("digits", "digits", "digits")},
}


@pytest.mark.parametrize("kind", but_first(["matched, mixtures"], KINDS))
def test_every_kind_of_run_replays_to_the_bit(train, on_cluster, kind: str) -> None:
    assert_bit_identical(train(**PLAIN | KINDS[kind], name="run"))


def test_carries_extras_buffers_frozen_tensors_and_refusals_replay_to_the_bit(stored, on_cluster) -> None:
    run = stored("counting")
    assert [list(run.round(number).refused) for number in (1, 2, 3)] == [[], [1], [1]]
    assert_bit_identical(run)


def test_a_round_that_starts_from_another_run_replays_without_it(run, train) -> None:
    child = train(**PLAIN, start_from="plain@2", name="child")
    shutil.rmtree(run.path)
    assert rw.open_run(child.path).replay("all").identical


ALONE = """
import sys
class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {"prefect", "dask", "distributed"}:
            raise ModuleNotFoundError(f"no {name} here", name=name)
sys.meta_path.insert(0, Blocked())
import roundweave as rw
replay = rw.open_run("run", root=sys.argv[1]).replay("all")
print(replay.replayed, replay.exit_code, dict(replay.key))
"""


@pytest.mark.dear("a process that has neither Prefect nor Dask")
def test_a_moved_store_replays_in_a_new_process_without_prefect_dask_and_the_users_file(
    train, own, tmp_path: Path
) -> None:
    run = train(**counting(own), partitions=3, rounds=3, name="run")
    (tmp_path / "mine.py").unlink()
    (tmp_path / "elsewhere").mkdir()
    run.path.rename(tmp_path / "elsewhere/run.zarr")
    line = [sys.executable, "-c", ALONE, str(tmp_path / "elsewhere")]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert done.stdout == "[1, 2, 3] 0 {}\n"


# Which rounds.


def test_rounds_are_chosen_by_number_all_the_last_or_a_sample_spread_evenly_to_the_last(train, capsys) -> None:
    run = train(**PLAIN | {"rounds": 5}, name="run")
    assert run.replay().replayed == [5]
    assert run.replay(2).replayed == [2]
    assert run.replay([-1, 3, 3]).replayed == [3, 5]
    assert run.replay(np.arange(1, 3)).replayed == [1, 2]
    for sample, rounds in {1: [5], 2: [2, 5], 4: [1, 2, 3, 5], 9: [1, 2, 3, 4, 5]}.items():
        code, out, _ = command(capsys, "replay", "run", "--sample", str(sample), "--executor", "inline", "--json")
        assert (code, [row["round"] for row in json.loads(out)["rounds"]]) == (0, rounds)


REFUSED = {
    ("merged",): "merged is a merge and has no training rounds; name a run that was trained",
    ("plain", "--round", "0"): "round 0 is the initial state, which has no maps; replay 1 to 3",
    ("plain", "--round", "4"): "no committed round 4",
    ("plain", "--all", "--sample", "2"): "choose rounds, all of them or a sample: one of the three",
    ("plain", "--all", "--round", "2"): "choose --round, --all or --sample: one of the three",
}


def test_what_cannot_be_replayed_is_refused_in_one_line(run, capsys) -> None:
    rw.merge(rw.MergeConfig(networks=("plain@1", "plain@2"), match="none", name="merged", executor="inline"))
    for arguments, line in REFUSED.items():
        code, said = refused(capsys, "replay", *arguments, "--executor", "inline")
        assert code in (1, 2)
        assert line in said


def test_a_round_whose_state_before_is_damaged_is_a_failure(run, flip) -> None:
    flip(run.path / "params/fc1.weight/c/2/0/0")
    replay = run.replay("all")
    assert (replay.exit_code, statuses(replay)) == (1, ["bit-identical", "bit-identical", "differs"])
    assert "it is damaged: " in str(replay.results[2])


# Other bits.


def rewritten(run: rw.Run, number: int, change, attributes=lambda values: values) -> rw.Run:
    """The run with one commit and the attributes changed, and all chains made consistent with that."""
    store = run._store
    commits = [store.log.read(round) for round in store.log.rounds()]
    root = json.loads((run.path / NAME).read_text())
    root["attributes"] = attributes(root["attributes"])
    (run.path / NAME).write_text(json.dumps(root))
    for file in (run.path / "commits").glob("*.json"):
        if file.stem.isdecimal():
            file.unlink()
    log = CommitLog(store.place, json_digest(root["attributes"]), store.schema)
    for commit in commits:
        log.create(change(commit) if commit.round == number else commit)
    return rw.open_run(run.path)


def with_other_update(run: rw.Run) -> rw.Run:
    """In round 2 the update of partition 1 has a zero where `fc2.bias` had its third number."""
    update = run.round(2).update(1)
    vectors = {name: vector.clone() for name, vector in update.direction.items()}
    rw.views(run._store.schema.layout.params, vectors)["fc2.bias"][2] = 0.0
    other = replace(update, direction=vectors)
    run._store.tensors.write_updates(2, {1: other})

    def change(commit):
        records = dict(commit.updates)
        records[1] = replace(records[1], digest=update_digest(other))
        return replace(commit, updates=records)

    return rewritten(run, 2, change)


def with_other_state(run: rw.Run) -> rw.Run:
    """After round 3, which is the last, `fc1.bias` is greater by 1 at its last place."""
    state = run.round(3).state
    vectors = {name: vector.clone() for name, vector in state.params.items()}
    rw.views(run._store.schema.layout.params, vectors)["fc1.bias"][-1] += 1
    other = replace(state, params=vectors)
    run._store.tensors.write_state(other)
    digests = tensor_digests(other.named(run._store.schema.layout))
    change = {"tensors": digests, "state": state_digest(digests, 3)}
    return rewritten(run, 3, lambda commit: replace(commit, **change))


@pytest.mark.parametrize("executor", but_first(["inline"], ["inline", "graph"]))
def test_what_was_altered_is_named_with_its_tensor_and_how_far_it_is_off(run, on_cluster, executor) -> None:
    update = run.round(2).updates["fc2.bias"].sel(partition=1).values[2]
    bias = run.round(3).params["fc1.bias"][-1].item()
    replay = with_other_state(with_other_update(run)).replay("all", executor=executor)
    assert statuses(replay) == ["bit-identical", "differs", "differs"]
    _, one, other = (result.difference for result in replay.results)
    assert (one.path, one.partition, one.largest) == ("updates/fc2.bias", 1, abs(float(update)))
    assert (other.path, other.partition) == ("params/fc1.bias", None)
    assert other.largest == abs(float(np.float32(bias) + np.float32(1)) - bias)
    assert replay.exit_code == 1


@pytest.mark.parametrize("factor", [2.0, *second(float("nan"))])
def test_a_map_that_computes_something_else_now_is_found(run, monkeypatch, capsys, factor: float) -> None:
    honest = rw.LocalSteps.__call__

    def other(self, objective, state, examples, carry, seed):
        update = honest(self, objective, state, examples, carry, seed)
        return replace(update, direction={name: factor * vector for name, vector in update.direction.items()})

    monkeypatch.setattr(rw.LocalSteps, "__call__", other)
    largest = float(np.abs(run.round(3).updates["fc1.weight"].sel(partition=0)).max())
    wanted = largest if factor == 2 else float("inf")
    difference = run.replay().results[0].difference
    assert (difference.path, difference.partition, difference.largest) == ("updates/fc1.weight", 0, wanted)
    code, out, _ = command(capsys, "replay", "plain", "--executor", "inline")
    differs = f"round 3: differs, updates/fc1.weight of partition 0 by up to {wanted:.6g}"
    assert (code, out.splitlines()) == (1, ["plain, round 3: 1 of 1 differ", differs])
    _, out, _ = command(capsys, "replay", "plain", "--executor", "inline", "--json")
    assert json.loads(out, parse_constant=pytest.fail)["rounds"][0]["largest"] == (
        largest if factor == 2 else "inf"
    )


def test_a_map_that_fails_now_is_a_difference(run, monkeypatch) -> None:
    monkeypatch.setattr(rw.LocalSteps, "__call__", lambda *arguments: 1 / 0)
    result = run.replay().results[0]
    assert result.status == "differs"
    assert "refused of partition 0: its map failed with ZeroDivisionError" in str(result)


KEYS = {
    "fingerprint": ({"torch": "1.0"}, f"this process has torch {torch.__version__!r} instead of '1.0'"),
    "versions": ({"python": "2.7"}, f"python {sys.version.split()[0]} instead of 2.7"),
    "data": ({"digest": "00"}, "other examples, of digest "),
}


@pytest.mark.parametrize("name", but_first(["data"], KEYS))
def test_a_key_that_differs_is_named_and_other_bits_end_with_another_code(run, capsys, name: str) -> None:
    other, said = KEYS[name]
    replay = rewritten(run, 0, lambda commit: commit, lambda values: values | {name: other}).replay("all")
    assert (replay.identical, replay.exit_code, list(replay.key)) == (True, 0, [name])
    assert replay.key[name].startswith(said)
    _, out, _ = command(capsys, "replay", "plain", "--executor", "inline")
    assert out == f"plain, round 3: bit-identical\nnot as recorded: {name}: {replay.key[name]}\n"

    with_other_state(rw.open_run("plain"))
    code, out, _ = command(capsys, "replay", "plain", "--all", "--executor", "inline", "--json")
    summary = json.loads(out)
    assert (code, list(summary["key"]), summary["identical"]) == (3, [name], False)
    assert summary["rounds"][2]["differs"] == "params/fc1.bias"


# Data and code that are elsewhere, other ones, or foreign.


@pytest.fixture
def npz(train, tmp_path: Path) -> Path:
    """The examples of a run, with inputs x and labels y."""
    x, file = np.random.default_rng(0).normal(size=(60, 4)).astype("f4"), tmp_path / "first.npz"
    np.savez(file, x=x, y=np.arange(60) % 3)
    train(**PLAIN, data=f"npz:{file}", name="run")
    return file


def test_examples_that_were_moved_are_given_by_data(npz: Path, capsys) -> None:
    moved = f"npz:{npz.rename(npz.with_name('second.npz'))}"
    says = r"first.npz.*; if the run's examples have moved, name their place by --data"
    with pytest.raises(DataError, match=says):
        rw.open_run("run").replay()
    replay = rw.open_run("run").replay("all", data=moved)
    assert (replay.identical, replay.key) == (True, {})
    code, out, _ = command(capsys, "replay", "run", "--executor", "inline", "--data", moved)
    assert (code, out) == (0, "run, round 3: bit-identical\n")


@pytest.mark.parametrize("change", ["inputs", "labels"])
def test_other_examples_are_another_key_and_another_network_differs_in_its_layout(npz: Path, change: str) -> None:
    with np.load(npz) as arrays:
        other = {"inputs": {"x": arrays["x"] + 1}, "labels": {"y": np.arange(60) % 5}}
        np.savez(npz, **dict(arrays) | other[change])
    replay = rw.open_run("run").replay("all")
    assert (statuses(replay), list(replay.key), replay.exit_code) == (["differs"] * 3, ["data"], 3)
    if change == "labels":
        assert [result.difference.path for result in replay.results] == ["layout"] * 3
        assert "fc2.weight" in str(replay.results[0])


SIBLING = """
from torch import nn
import helper
def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), nn.Dropout(helper.SHARE))
"""


def test_a_module_beside_the_users_is_replayed_as_the_run_keeps_it(train, own, tmp_path) -> None:
    own("SHARE = 0.5\n", "helper")
    train(**PLAIN | {"model": f"{own(SIBLING)}:model", "model_options": {}}, name="run")
    for change in (lambda: own("SHARE = 0.25\n", "helper"), (tmp_path / "helper.py").unlink):
        change()
        replay = rw.open_run("run").replay()
        assert (replay.exit_code, dict(replay.key)) == (0, {})


@pytest.mark.thorough
def test_a_function_of_an_installed_package_of_another_version_is_named(train, monkeypatch) -> None:
    train(**PLAIN, loss="torch.nn.functional:cross_entropy", name="run")
    assert dict(rw.open_run("run").replay().key) == {}
    monkeypatch.setattr(torch, "__version__", "1.0")
    assert rw.open_run("run").replay().key["code"] == "torch.nn.functional:cross_entropy is of another version"


FIVE = {"algorithm": "fed_avg", "partitions": 2, "rounds": 5, "local_steps": 1, "model_options": {"hidden": 4}}


@pytest.fixture
def pruned(train) -> rw.Run:
    """A run of which the states of rounds 0, 4 and 5 and the updates of 4 and 5 are kept."""
    prune_run(RoundStore(train(**FIVE, name="small").path), Keep.of("last:2"))
    return rw.open_run("small")


def test_what_is_not_there_is_made_again_and_replayed(pruned, capsys) -> None:
    code, out, _ = command(capsys, "replay", "small", "--all", "--executor", "inline")
    assert (code, out) == (0, "small, round 1 to 5: bit-identical\n")
    assert pruned.replay(3).identical


@pytest.mark.thorough
def test_runs_of_which_one_was_pruned_are_equal(pruned, train, capsys) -> None:
    train(**FIVE, name="whole")
    code, out, _ = command(capsys, "diff", "small", "whole")
    assert (code, out) == (0, "small and whole are equal: experiment, updates and states of 6 rounds\n")
    train(**FIVE | {"lr": 0.2}, name="other")
    code, out, err = command(capsys, "diff", "small", "other")
    assert (code, err.count("\n")) == (1, 1)
    assert "computing round 1 of small again" in err
    assert "the update of partition 0" in out
