"""Law 4: replaying a stored round gives the stored bits; else it is said what differs, and how far."""

from __future__ import annotations

import json
import pickle
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
from roundweave.storage.errors import DataError, RoundMissing
from roundweave.storage.hierarchy.zarr_format import NAME
from roundweave.storage.rounds.lease import hold_lease
from roundweave.storage.rounds.log import CommitLog
from roundweave.storage.values.digests import state_digest, tensor_digests, update_digest
from roundweave.storage.values.hashing import json_digest
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.algorithms.table import ALGORITHMS
from roundweave.tasks.algorithms.when import Synchronous
from roundweave.tasks.executors.clusters.connecting import connect
from tests.counting import counting
from tests.flows.command.in_process import run as command
from tests.tasks.sampled import sampled

SMALL = {"model": "mlp", "model_options": {"hidden": 6}, "partitions": 3, "rounds": 3, "held_out": 0.5}
LOCAL = {"local_steps": 2, "batch_size": 8}


@pytest.fixture(scope="module")
def cluster() -> Iterator[None]:
    """Two workers, for all that replays on a cluster here."""
    with connect(None, 2) as client, client.as_current():
        yield


def statuses(replay: Replay) -> list[str]:
    return [result.status for result in replay.results]


def assert_bit_identical(run, rounds: int) -> None:
    """Every round, in this process and on a cluster."""
    for executor in ("inline", "graph"):
        replay = rw.open_run(run.path).replay("all", executor=executor)
        assert statuses(replay) == ["bit-identical"] * rounds, replay
        assert replay.key == {}
        assert replay.exit_code == 0


def files(run) -> dict[str, bytes]:
    return {str(file): file.read_bytes() for file in run.path.rglob("*") if file.is_file()}


# Equal bits.


@pytest.mark.parametrize("algorithm", sampled(3, sorted(ALGORITHMS)))
def test_every_algorithm_goes_on_is_sound_and_replays_to_the_bit(train, cluster, algorithm: str) -> None:
    fields = {name: value for name, value in LOCAL.items() if name in ALGORITHMS[algorithm].options}
    fields |= {"resplit_every": 2} if ALGORITHMS[algorithm].when is Synchronous else {}
    for rounds in (2, 3):
        run = train(**SMALL | {"rounds": rounds}, **fields, algorithm=algorithm, name="run")
        seen = run.verify()
        assert (seen.findings, seen.notes, seen.rounds) == ((), (), rounds)
    assert_bit_identical(run, 3)


KINDS = {
    "bfloat16": {"dtype": "bfloat16"},
    "float64": {"dtype": "float64"},
    "dropout": {"model_options": {"hidden": 6, "dropout": 0.3}},
    "another split every round": {"resplit_every": 1},
    "two threads": {"threads": 2},
    "robust": {"reduce": "trimmed_mean:1"},
    "matched, mixtures": {"algorithm": "matched", "init": "per-partition", "match": "weights", "soft": 2},
    "schedules": {"lr_schedule": "cosine", "warmup": 1, "outer_momentum": 0.9},
    "carried optimizer": {"optimizer": "AdamW", "optimizer_state": "carried", "lr": 0.01},
    "skewed": {"split": "dirichlet:0.5"},
    "a source each": {"data": ("digits", "digits", "digits")},
}


@pytest.mark.parametrize("kind", sampled(2, KINDS))
def test_every_kind_of_run_replays_to_the_bit(train, cluster, kind: str) -> None:
    assert_bit_identical(train(**{**SMALL, **LOCAL, **KINDS[kind]}, name="run"), 3)


def test_carries_extras_buffers_frozen_tensors_and_refusals_replay_to_the_bit(train, cluster, own) -> None:
    run = train(**counting(own), partitions=3, rounds=4, name="run")
    refused = {number: list(run.round(number).refused) for number in range(1, 5)}
    assert refused == {1: [], 2: [1], 3: [1], 4: []}
    assert run.round(4).commit.carry_from == {0: 4, 1: 4, 2: 4}
    assert_bit_identical(run, 4)


def test_a_round_that_starts_from_another_run_replays_without_it(train) -> None:
    parent = train(**SMALL, **LOCAL, name="parent")
    child = train(**SMALL, **LOCAL, start_from="parent@2", name="child")
    shutil.rmtree(parent.path)
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


def test_a_moved_store_replays_in_a_new_process_without_prefect_dask_and_the_users_file(
    train, own, tmp_path: Path
) -> None:
    run = train(**counting(own), partitions=3, rounds=4, name="run")
    (tmp_path / "mine.py").unlink()
    (tmp_path / "elsewhere").mkdir()
    run.path.rename(tmp_path / "elsewhere/run.zarr")
    line = [sys.executable, "-c", ALONE, str(tmp_path / "elsewhere")]
    done = subprocess.run(line, capture_output=True, text=True, check=True, cwd=Path(__file__).parents[3])
    assert done.stdout == "[1, 2, 3, 4] 0 {}\n"


def test_nothing_is_written_though_another_writes_the_run(train, cluster) -> None:
    run = train(**SMALL, **LOCAL, resplit_every=1, name="run")
    with hold_lease(run._store.place, "another"):
        before = files(run)
        assert rw.open_run("run").replay("all").identical
        assert rw.open_run("run").replay("all", executor="graph").identical
        assert files(run) == before


# Which rounds.


def test_rounds_are_chosen_by_number_all_or_the_last(train) -> None:
    train(**{**SMALL, "rounds": 5}, **LOCAL, name="run")
    run = rw.open_run("run")
    assert run.replay().replayed == [5]
    assert run.replay(2).replayed == [2]
    assert run.replay([-1, 3, 3]).replayed == [3, 5]
    assert run.replay(np.arange(1, 3)).replayed == [1, 2]
    assert run.replay("all").replayed == [1, 2, 3, 4, 5]


def test_a_sample_is_spread_evenly_to_the_last_round(train, capsys) -> None:
    train(**{**SMALL, "rounds": 5}, **LOCAL, name="run")
    for sample, rounds in {1: [5], 2: [2, 5], 4: [1, 2, 3, 5], 5: [1, 2, 3, 4, 5], 9: [1, 2, 3, 4, 5]}.items():
        code, out, _ = command(capsys, "replay", "run", "--sample", str(sample), "--executor", "inline", "--json")
        assert code == 0
        assert [row["round"] for row in json.loads(out)["rounds"]] == rounds


def test_what_cannot_be_replayed_is_refused_in_one_line(train, capsys) -> None:
    train(**SMALL, **LOCAL, name="run")
    for seed in (1, 2):
        train(**{**SMALL, "partitions": 1}, **LOCAL, seed=seed, name=f"part{seed}")
    rw.merge(rw.MergeConfig(networks=("part1@-1", "part2@-1"), name="merged", executor="inline"))
    refused = {
        ("merged",): "merged is a merge, and no rounds led to it; name a run that was trained",
        ("run", "--round", "0"): "round 0 is the initial state, which no maps made; replay 1 to 3",
        ("run", "--round", "4"): "no committed round 4",
        ("run", "--all", "--sample", "2"): "choose rounds, all of them or a sample: one of the three",
        ("run", "--all", "--round", "2"): "choose --round, --all or --sample: one of the three",
        ("runn",): "did you mean run?",
    }
    for arguments, line in refused.items():
        code, out, err = command(capsys, "replay", *arguments, "--executor", "inline")
        assert code in (1, 2)
        assert out == ""
        assert err.startswith("error: ")
        assert line in err
        assert err.count("\n") == 1


def test_a_round_whose_state_before_is_gone_is_a_failure_and_one_without_records_is_named(
    train, cluster, capsys
) -> None:
    run = train(**{**SMALL, "rounds": 5}, **LOCAL, name="run")
    shutil.rmtree(run.path / "params/fc1.weight/c/2")
    (run.path / "commits/4.json").unlink()
    for executor in ("inline", "graph"):
        (result,) = rw.open_run("run").replay(3, executor=executor).results
        assert "it is damaged: " in str(result)
        assert "round 2 has no params/fc1.weight" in str(result)
        with pytest.raises(RoundMissing, match=r"round 5 of run cannot be replayed: "):
            rw.open_run("run").replay(5, executor=executor)
        replay = rw.open_run("run").replay("all", executor=executor)
        assert dict(zip((v.round for v in replay.results), statuses(replay), strict=True)) == {
            1: "bit-identical",
            2: "bit-identical",
            3: "differs",
            5: "not replayed",
        }
    code, out, _ = command(capsys, "replay", "run", "--all", "--executor", "inline")
    assert code == 1
    assert "not replayed: round 5; " in out


def test_a_round_whose_state_before_is_damaged_is_a_failure(train, capsys, flip) -> None:
    run = train(**SMALL, **LOCAL, name="run")
    flip(run.path / "params/fc1.weight/c/2/0/0")
    code, out, _ = command(capsys, "replay", "run", "--all", "--executor", "inline")
    assert (code, statuses(rw.open_run("run").replay("all"))) == (1, ["bit-identical", "bit-identical", "differs"])
    assert "it is damaged: " in " ".join(out.split())


# Other bits.


@pytest.fixture
def run(train) -> rw.Run:
    train(**SMALL, **LOCAL, name="run")
    return rw.open_run("run")


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


@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_what_was_altered_is_named_with_its_tensor_and_how_far_it_is_off(run, cluster, executor) -> None:
    update = run.round(2).updates["fc2.bias"].sel(partition=1).values[2]
    bias = run.round(3).params["fc1.bias"][-1].item()
    replay = with_other_state(with_other_update(run)).replay("all", executor=executor)
    assert statuses(replay) == ["bit-identical", "differs", "differs"]
    _, one, other = (result.difference for result in replay.results)
    assert (one.path, one.partition, one.largest) == ("updates/fc2.bias", 1, abs(float(update)))
    assert (other.path, other.partition) == ("params/fc1.bias", None)
    assert other.largest == abs(float(np.float32(bias) + np.float32(1)) - bias)
    assert replay.exit_code == 1


@pytest.mark.parametrize("factor", [2.0, float("nan")])
def test_a_map_that_computes_something_else_now_is_found(run, monkeypatch, capsys, factor: float) -> None:
    honest = LocalSteps.__call__

    def other(self, objective, state, examples, carry, seed):
        update = honest(self, objective, state, examples, carry, seed)
        return replace(update, direction={name: factor * vector for name, vector in update.direction.items()})

    monkeypatch.setattr(LocalSteps, "__call__", other)
    largest = float(np.abs(run.round(3).updates["fc1.weight"].sel(partition=0)).max())
    wanted = largest if factor == 2 else float("inf")
    difference = run.replay().results[0].difference
    assert (difference.path, difference.partition, difference.largest) == ("updates/fc1.weight", 0, wanted)
    code, out, _ = command(capsys, "replay", "run", "--executor", "inline")
    assert code == 1
    differs = f"round 3: differs, updates/fc1.weight of partition 0 by up to {wanted:.6g}"
    assert out.splitlines() == ["run, round 3: 1 of 1 differ", differs]
    _, out, _ = command(capsys, "replay", "run", "--executor", "inline", "--json")
    assert json.loads(out, parse_constant=pytest.fail)["rounds"][0]["largest"] == (
        largest if factor == 2 else "inf"
    )


def test_a_map_that_fails_now_is_a_difference(run, monkeypatch) -> None:
    monkeypatch.setattr(LocalSteps, "__call__", lambda *arguments: 1 / 0)
    result = run.replay().results[0]
    assert result.status == "differs"
    assert "refused of partition 0: its map failed with ZeroDivisionError" in str(result)


OTHER_KEYS = {
    "fingerprint": {"fingerprint": {"torch": "1.0", "processor": "Z80"}},
    "versions": {"versions": {"python": "2.7"}},
    "data": {"data": {"digest": "00"}},
}
SAID = {
    "fingerprint": f"this process has torch {torch.__version__!r} instead of '1.0'; processor ",
    "versions": f"python {sys.version.split()[0]} instead of 2.7",
    "data": "other examples, of digest ",
}


@pytest.mark.parametrize("name", OTHER_KEYS)
def test_a_key_that_differs_is_named_and_other_bits_end_with_another_code(run, capsys, name: str) -> None:
    def attributes(values):
        return values | {key: values[key] | value for key, value in OTHER_KEYS[name].items()}

    replay = rewritten(run, 0, lambda commit: commit, attributes).replay("all")
    assert (replay.identical, replay.exit_code, list(replay.key)) == (True, 0, [name])
    assert replay.key[name].startswith(SAID[name])
    code, out, _ = command(capsys, "replay", "run", "--executor", "inline")
    assert code == 0
    assert out == f"run, round 3: bit-identical\nnot as recorded: {name}: {replay.key[name]}\n"

    with_other_state(rw.open_run("run"))
    code, out, _ = command(capsys, "replay", "run", "--all", "--executor", "inline", "--json")
    assert code == 3
    summary = json.loads(out)
    assert list(summary["key"]) == [name]
    assert summary["rounds"][2]["differs"] == "params/fc1.bias"
    assert not summary["identical"]


def test_unequal_machines_were_accepted_and_that_is_said(train) -> None:
    train(**SMALL, **LOCAL, mixed_hardware=True, name="run")
    replay = rw.open_run("run").replay()
    assert replay.identical
    assert replay.key == {"fingerprint": "none was recorded, for the run accepts unequal machines"}


# Data and code that are elsewhere, other ones, or foreign.


@pytest.fixture
def npz(tmp_path: Path) -> Path:
    generator = np.random.default_rng(0)
    np.savez(tmp_path / "first.npz", x=generator.normal(size=(60, 4)).astype("f4"), y=np.arange(60) % 3)
    return tmp_path / "first.npz"


def test_examples_that_were_moved_are_given_by_data(train, npz: Path, capsys) -> None:
    train(**{**SMALL, **LOCAL}, data=f"npz:{npz}", name="run")
    moved = f"npz:{npz.rename(npz.with_name('second.npz'))}"
    with pytest.raises(
        DataError, match=r"first.npz.*; where the run's examples lie elsewhere now, say so with --data"
    ):
        rw.open_run("run").replay()
    replay = rw.open_run("run").replay("all", data=moved)
    assert (replay.identical, replay.key) == (True, {})
    code, out, _ = command(capsys, "replay", "run", "--executor", "inline", "--data", moved)
    assert (code, out) == (0, "run, round 3: bit-identical\n")


def test_other_examples_are_another_key(train, npz: Path) -> None:
    train(**{**SMALL, **LOCAL}, data=f"npz:{npz}", name="run")
    with np.load(npz) as arrays:
        np.savez(npz, x=arrays["x"] + 1, y=arrays["y"])
    replay = rw.open_run("run").replay("all")
    assert statuses(replay) == ["differs"] * 3
    assert list(replay.key) == ["data"]
    assert replay.exit_code == 3


def test_examples_that_make_another_network_are_a_difference_of_its_layout(train, npz: Path) -> None:
    train(**{**SMALL, **LOCAL}, data=f"npz:{npz}", name="run")
    with np.load(npz) as arrays:
        np.savez(npz, x=arrays["x"], y=np.arange(60) % 5)
    replay = rw.open_run("run").replay("all")
    assert [result.difference.path for result in replay.results] == ["layout"] * 3
    assert "fc2.weight" in str(replay.results[0])
    assert replay.exit_code == 3


SIBLING = """
from torch import nn
import helper
def model():
    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10), helper.scaled())
"""
HELPER = """
from torch import nn
class Scaled(nn.Module):
    def forward(self, x):
        return FACTOR * x
def scaled():
    return Scaled()
"""


def test_a_module_beside_the_users_is_replayed_as_the_run_keeps_it(train, own, tmp_path) -> None:
    own(HELPER + "FACTOR = 1\n", "helper")
    train(**{**SMALL, **LOCAL, "model": f"{own(SIBLING)}:model", "model_options": {}}, name="run")
    for change in (lambda: own(HELPER + "FACTOR = 2\n", "helper"), (tmp_path / "helper.py").unlink):
        change()
        replay = rw.open_run("run").replay()
        assert (replay.exit_code, dict(replay.key)) == (0, {})


def test_a_function_of_an_installed_package_of_another_version_is_named(train, monkeypatch) -> None:
    train(**{**SMALL, **LOCAL}, loss="torch.nn.functional:cross_entropy", name="run")
    assert dict(rw.open_run("run").replay().key) == {}
    monkeypatch.setattr(torch, "__version__", "1.0")
    assert rw.open_run("run").replay().key["code"] == "torch.nn.functional:cross_entropy is of another version"


def test_code_of_a_run_from_elsewhere_is_run_only_where_it_is_trusted(train, own, tmp_path: Path, capsys) -> None:
    run = train(**counting(own), partitions=2, rounds=1, name="theirs", root=tmp_path / "elsewhere")
    with pytest.raises(rw.UsageError, match=r"holds code .*--trust"):
        rw.open_run(run.path).replay()
    assert rw.open_run(run.path).replay(trust=True).identical
    assert command(capsys, "replay", str(run.path), "--executor", "inline")[0] == 2
    assert command(capsys, "replay", str(run.path), "--executor", "inline", "--trust")[0] == 0


def test_a_replay_is_a_value_that_pickles_and_says_what_it_found(run) -> None:
    replay = with_other_update(run).replay("all")
    assert pickle.loads(pickle.dumps(replay)) == replay
    assert "round 1 to 3: 1 of 3 differ; round 2: differs, updates/fc2.bias of" in str(replay)
    assert [row["round"] for row in replay.summary()["rounds"]] == [1, 2, 3]
