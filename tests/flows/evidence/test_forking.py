"""A fork begins with a stored round, its memory included, and is what its parent is but for the changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch

import roundweave as rw
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import Execution, TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.flows.reporting.listening import Listener, listening
from roundweave.storage.errors import CheckpointError, NotARun, RoundMissing, UsageError
from roundweave.storage.rounds.commits import Score
from roundweave.tasks.executors.inline import InlineExecutor
from tests.flows.command.in_process import run as command
from tests.tasks.merging.by_hand import same_bits

SMALL = {"model": "mlp", "model_options": {"hidden": 6}, "partitions": 3, "local_steps": 2, "rounds": 3}


class Notices(Listener):
    """A listener that keeps the notices."""

    def __init__(self) -> None:
        self.texts: list[str] = []

    def notice(self, text: str) -> None:
        self.texts.append(text)


def forked(place: str, **changes: object) -> tuple[rw.Run, list[str]]:
    """The run that a fork makes without Prefect, and what was noticed."""
    config = rw.fork(place, **{"executor": "inline", "rounds": 2, "name": "fork"} | changes)
    notices, executor = Notices(), InlineExecutor()
    with listening(notices), prepared(resolve(config), executor) as ready:
        list(executor.run(ready.job, 1, config.rounds))
    return rw.open_run(config.name), notices.texts


@pytest.mark.parametrize("algorithm", ["diloco", "scaffold"])
def test_a_fork_begins_with_the_state_and_the_memory_of_its_parents_round(train, algorithm) -> None:
    parent = train(**SMALL, algorithm=algorithm, name="parent")
    run, notices = forked("parent@2")
    before, first = parent.round(2).state, run.round(0).state
    assert same_bits(first.params, before.params)
    assert first.memory.keys() == before.memory.keys()
    assert all(same_bits(first.memory[slot], before.memory[slot]) for slot in first.memory)
    assert notices == []
    assert run.done == 2


def test_the_buffers_and_frozen_parameters_go_along(train, own) -> None:
    mine = own(
        "from torch import nn\n"
        "def model():\n"
        "    net = nn.Sequential(nn.Flatten(), nn.Linear(64, 4), nn.BatchNorm1d(4), nn.Linear(4, 10))\n"
        "    net[1].weight.requires_grad_(False)\n"
        "    return net\n"
    )
    parent = train(**SMALL | {"model": f"{mine}:model", "model_options": {}}, name="parent")
    Path(mine).unlink()
    run, _ = forked("parent@1")
    before, first = parent.round(1).tensors, run.round(0).tensors
    assert before.keys() == first.keys()
    assert all(torch.equal(before[name], first[name]) for name in before)


def test_what_is_given_lies_over_the_parents_experiment_and_nothing_of_its_execution_is_taken(train) -> None:
    train(**SMALL, algorithm="diloco", lr=0.002, seed=3, name="parent", evaluate_every=2, window=2, patience=9)
    config = rw.fork("parent@2", batch_size=8, quorum=2)
    assert config.algorithm.options["lr"] == 0.002
    assert config.algorithm.options["batch_size"] == 8
    assert (config.seed, config.quorum, config.partitions) == (3, 2, 3)
    ours = Execution(root=config.root)
    assert {name: getattr(config, name) for name in Execution.model_fields} == dict(ours)


def test_another_algorithm_has_its_own_options(train) -> None:
    train(**SMALL, outer_lr=0.9, lr=0.3, name="parent")
    assert rw.fork("parent@1", algorithm="fed_adam").algorithm == TrainConfig(algorithm="fed_adam").algorithm


def test_a_memory_that_the_parent_has_not_begins_anew_and_is_named(train) -> None:
    train(**SMALL, outer_momentum=0.5, name="parent")
    run, notices = forked("parent@2", algorithm="fed_adam", outer_tau=0.5)
    assert len(notices) == 1
    assert "fork begins with first, second of its own" in notices[0]
    memory = run.round(0).state.memory
    assert set(memory) == {"first", "second"}
    assert torch.equal(memory["second"]["float32"], torch.full_like(memory["second"]["float32"], 0.25))


def test_what_partitions_carry_goes_along_where_they_are_the_same(train) -> None:
    parent = train(**SMALL, algorithm="scaffold", outer_momentum=0.5, name="parent")
    run, notices = forked("parent@2", lr=0.05)
    assert notices == []
    for partition in range(3):
        carried, kept = parent.round(2).update(partition).carry, run.round(0).update(partition).carry
        assert torch.equal(carried["control"]["float32"], kept["control"]["float32"])
    assert run.round(0).commit.carry_from == {0: 0, 1: 0, 2: 0}
    assert run.verify().findings == ()
    assert run.replay("all").identical
    other, notices = forked("parent@2", name="other", partitions=4)
    assert other.round(0).commit.carry_from == {}
    # A control variate of the server is the mean of those of the partitions, which begin with none.
    assert not other.round(0).state.memory["control"]["float32"].any()
    velocity = other.round(0).state.memory["velocity"]
    assert same_bits(velocity, parent.round(2).state.memory["velocity"])
    assert "other begins with control of its own" in notices[0]


@pytest.mark.parametrize(
    ("algorithm", "slot", "stays"), [("fed_dyn", "drift", False), ("mime_lite", "momentum", True)]
)
def test_what_the_server_keeps_of_partitions_stays_behind_with_it(train, algorithm, slot, stays) -> None:
    parent = train(**SMALL, algorithm=algorithm, name="parent")
    run, _ = forked("parent@2", partitions=4)
    before, after = (each.state.memory[slot] for each in (parent.round(2), run.round(0)))
    assert before["float32"].any()
    assert same_bits(before, after) is stays
    assert stays or not after["float32"].any()


def test_what_partitions_carry_stays_where_the_fork_carries_something_else(train) -> None:
    adam = {"optimizer": "AdamW", "lr": 0.01, "optimizer_state": "carried"}
    parent = train(**SMALL, **adam, name="parent")
    run, _ = forked("parent@2")
    carried, kept = parent.round(2).update(0).carry, run.round(0).update(0).carry
    assert torch.equal(carried["exp_avg"]["float32"], kept["exp_avg"]["float32"])
    for name, changes in {
        "sgd": {"optimizer": "SGD", "momentum": 0.9},
        "fresh": {"optimizer_state": "fresh"},
        "control": {"algorithm": "scaffold"},
    }.items():
        other, notices = forked("parent@2", name=name, **changes)
        assert other.round(0).commit.carry_from == {}
        said = [notice for notice in notices if notice.endswith("parent.zarr@2 carry other slots")]
        assert len(said) == (name != "fresh")
        assert other.replay("all").identical


def test_what_partitions_bring_along_is_not_taken_for_results(train, capsys) -> None:
    train(**SMALL, algorithm="scaffold", name="parent")
    forked("parent@2")
    code, out, _ = command(capsys, "show", "fork", "--json")
    assert (code, json.loads(out)["refused"]) == (0, 0)


def test_a_fork_says_where_it_came_from(train, capsys) -> None:
    parent = train(**SMALL, name="parent")
    run, _ = forked("parent@2")
    chain = parent.round(2).chain
    assert run.attributes["parent"] == {"run": "parent", "round": 2, "chain": chain}
    _, out, _ = command(capsys, "show", "fork")
    assert f"parent@2, chain {chain}" in out


def test_rounds_are_named_by_what_they_are(train, monkeypatch) -> None:
    # Of the digits no round of so few steps is told apart by accuracy alone, so the numbers are set here.
    scored = {4.0: 0.1, 3.0: 0.1, 2.0: 0.3, 1.0: 0.3}  # the accuracy of each loss, from round 0 on
    scores = iter([Score(loss, {"accuracy": accuracy}) for loss, accuracy in scored.items()])
    monkeypatch.setattr("roundweave.tasks.rounds.steps.score", lambda *_: next(scores))
    train(**SMALL, name="parent")
    for which, wanted in {"-1": 3, "last": 3, "best": 2, "1": 1}.items():
        assert rw.open_run("parent").round(int(which) if which[-1].isdigit() else which).number == wanted
        assert rw.fork(f"parent@{which}").start_from.parent["round"] == wanted


def test_a_fork_goes_on_without_its_parent(train, tmp_path: Path) -> None:
    train(**SMALL, name="parent", outer_momentum=0.5)
    whole, _ = forked("parent@2", name="whole", rounds=3)
    cut, _ = forked("parent@2", name="cut", rounds=1)
    shutil.rmtree(tmp_path / "runs" / "parent.zarr")
    rw.train(resumed_config("cut", None, trust=False, changes={"rounds": 3, "executor": "inline"}))
    assert cut.refresh().digest == whole.digest


def test_the_command_takes_a_file_and_flags_over_the_record(train, capsys, tmp_path: Path) -> None:
    train(**SMALL, name="parent", lr=0.3)
    (tmp_path / "train.toml").write_text('lr = 0.2\nrounds = 2\nexecutor = "inline"\n')
    arguments = ("train", str(tmp_path / "train.toml"), "--from", "parent@best", "--name", "fork", "--rounds", "1")
    assert command(capsys, *arguments)[0] == 0
    run = rw.open_run("fork")
    assert run.done == 1
    assert run.config["algorithm"]["lr"] == 0.2
    assert run.config["model_options"] == {"hidden": 6}
    assert command(capsys, *arguments)[0] == 0  # the same name and experiment go on


CANNOT = [
    (["--from", "parent"], 2, "parent is no stored round such as RUN@12"),
    (["--from", "parent"], 2, "name one, as parent@last, or give a file by --start-from"),
    (["--from", "parent@9"], 1, "no committed round 9"),
    (["--from", "nobody@1"], 1, "no run 'nobody'"),
    (["--from", "parent@1", "--start-from", "x.pt"], 2, "a run begins with parent@1 or with x.pt"),
    (["--from", "parent@1", "--name", "parent"], 1, "parent is another experiment (start_from None -> "),
    (["--from", "parent@1", "--init", "per-partition"], 2, "init = per-partition gives each partition"),
    (["--from", "parent@1", "--model-options", '{"hidden": 7}'], 1, "'fc1.weight' is float of shape (6, 64)"),
    (["--from", "merged@1"], 2, "merged is a merge"),
]


def test_what_cannot_be_is_one_clear_line(train, capsys) -> None:
    train(**SMALL, name="parent")
    networks = ("parent@1", "parent@2")
    rw.merge(rw.MergeConfig(networks=networks, match="none", name="merged", executor="inline"))
    for arguments, code, said in CANNOT:
        found, _, error = command(capsys, "train", *arguments, "--executor", "inline")
        assert found == code
        assert said in error.splitlines()[-1]


def test_code_of_a_run_outside_the_root_needs_trust_unless_it_is_replaced(train, own, tmp_path: Path) -> None:
    mine = own("from torch import nn\ndef model():\n    return nn.Sequential(nn.Flatten(), nn.Linear(64, 10))\n")
    train(**SMALL | {"model": f"{mine}:model", "model_options": {}, "rounds": 1}, name="parent")
    place = f"{tmp_path}/runs/parent.zarr@1"
    with pytest.raises(UsageError, match=r"is outside .* and holds code"):
        rw.fork(place, root=tmp_path / "other")
    rw.fork(place, root=tmp_path / "other", trust=True)
    rw.fork(place, root=tmp_path / "other", model="mlp")


def test_a_parent_that_has_changed_is_refused(train, tmp_path: Path) -> None:
    train(**SMALL, name="parent")
    config = rw.fork("parent@2", executor="inline", name="fork", rounds=1)
    shutil.rmtree(tmp_path / "runs" / "parent.zarr")
    with pytest.raises((NotARun, CheckpointError, RoundMissing)):
        rw.train(config)
    train(**SMALL, name="parent")  # the same bits, but another run
    with pytest.raises(CheckpointError, match="is not the round that the run was to begin with"):
        rw.train(config)
    assert not (tmp_path / "runs" / "fork.zarr").exists()
