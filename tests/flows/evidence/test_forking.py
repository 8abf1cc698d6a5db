"""A fork begins with a stored round, its memory included, and is what its parent is but for the changes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from unittest.mock import Mock

import pytest
import torch

import roundweave as rw
from roundweave.flows.config.recorded import resumed_config
from roundweave.flows.config.train import Execution, TrainConfig
from roundweave.flows.planning.plan import plan
from roundweave.flows.reporting.listening import Listener, listening
from roundweave.flows.training.job import prepare
from roundweave.storage.errors import CheckpointError, NotARun, RoundMissing
from roundweave.tasks.executors.inline import InlineExecutor
from tests.counting import counting
from tests.flows.command.in_process import run as command
from tests.rows import second
from tests.runs import RUNS
from tests.tasks.merging.by_hand import same_bits

SMALL = RUNS["plain"]


def forked(place: str, **changes: object) -> tuple[rw.Run, list[str]]:
    """The run that a fork makes without Prefect, and what was noticed."""
    config = rw.fork(place, **{"executor": "inline", "rounds": 1, "name": "fork"} | changes)
    notices, executor = Mock(spec=Listener), InlineExecutor()
    with listening(notices), prepare(plan(config), executor) as ready:
        list(executor.run(ready.job, 1, config.rounds))
    return rw.open_run(config.name), [call.args[0] for call in notices.notice.call_args_list]


def test_a_fork_begins_with_the_state_and_the_memory_of_its_parents_round(stored) -> None:
    parent = stored("momentum")
    run, notices = forked("momentum@2")
    before, first = parent.round(2).state, run.round(0).state
    assert same_bits(first.params, before.params)
    assert first.memory.keys() == before.memory.keys()
    assert all(same_bits(first.memory[slot], before.memory[slot]) for slot in first.memory)
    assert notices == []
    assert run.done == 1


def test_the_buffers_frozen_parameters_and_code_go_along(train, own, tmp_path: Path) -> None:
    parent = train(**counting(own), partitions=3, rounds=1, name="parent")
    (tmp_path / "mine.py").unlink()
    run, _ = forked("parent@1")
    before, first = parent.round(1).tensors, run.round(0).tensors
    assert before.keys() == first.keys() > parent.round(1).params.keys()
    assert all(torch.equal(before[name], first[name]) for name in before)


def test_what_is_given_lies_over_the_parents_experiment_and_nothing_of_its_execution_is_taken(train) -> None:
    train(**SMALL, algorithm="diloco", lr=0.002, seed=3, name="parent", evaluate_every=2, window=2, patience=9)
    config = rw.fork("parent@2", batch_size=9, quorum=2)
    options = config.algorithm.options
    assert (options["lr"], options["batch_size"]) == (0.002, 9)
    assert (config.seed, config.quorum, config.partitions) == (3, 2, 3)
    ours = Execution(root=config.root)
    assert {name: getattr(config, name) for name in Execution.model_fields} == dict(ours)


def test_another_algorithm_has_its_own_options(train) -> None:
    train(**SMALL | {"rounds": 1}, outer_lr=0.9, lr=0.3, name="parent")
    assert rw.fork("parent@1", algorithm="fed_adam").algorithm == TrainConfig(algorithm="fed_adam").algorithm


def test_a_memory_that_the_parent_has_not_begins_anew_and_is_named(stored) -> None:
    stored("momentum")
    run, notices = forked("momentum@2", algorithm="fed_adam", outer_tau=0.5)
    assert len(notices) == 1
    assert "fork begins with new first, second" in notices[0]
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
    assert "other begins with new control" in notices[0]


@pytest.mark.parametrize(
    ("algorithm", "slot", "stays"), [("fed_dyn", "drift", False), *second(("mime_lite", "momentum", True))]
)
def test_what_the_server_keeps_of_partitions_stays_behind_with_it(train, algorithm, slot, stays) -> None:
    parent = train(**SMALL, algorithm=algorithm, name="parent")
    run, _ = forked("parent@2", partitions=4)
    before, after = (each.state.memory[slot] for each in (parent.round(2), run.round(0)))
    assert before["float32"].any()
    assert same_bits(before, after) is stays
    assert stays or not after["float32"].any()


@pytest.mark.thorough
def test_what_partitions_carry_stays_where_the_fork_carries_something_else(train) -> None:
    adam = {"optimizer": "AdamW", "lr": 0.01, "optimizer_state": "carried"}
    train(**SMALL, **adam, name="parent")
    for name, changes in {
        "sgd": {"optimizer": "SGD", "momentum": 0.9},
        "fresh": {"optimizer_state": "fresh"},
        "control": {"algorithm": "scaffold"},
    }.items():
        other, notices = forked("parent@2", name=name, **changes)
        assert other.round(0).commit.carry_from == {}
        said = [notice for notice in notices if notice.endswith("parent.zarr@2 does not fit")]
        assert len(said) == (name != "fresh")
        assert name != "control" or other.replay("all").identical


def test_a_fork_says_where_it_came_from_and_what_partitions_bring_along_is_no_result(stored, capsys) -> None:
    parent = stored("scaffold")
    run, _ = forked("scaffold@2")
    chain = parent.round(2).chain
    assert run.attributes["parent"] == {"run": "scaffold", "round": 2, "chain": chain}
    assert f"scaffold@2, chain {chain}" in command(capsys, "show", "fork")[1]
    assert json.loads(command(capsys, "show", "fork", "--json")[1])["refused"] == 0


def test_a_fork_goes_on_without_its_parent(stored) -> None:
    parent = stored("momentum")
    whole, _ = forked("momentum@2", name="whole", rounds=3)
    cut, _ = forked("momentum@2", name="cut", rounds=1)
    shutil.rmtree(parent.path)
    rw.train(resumed_config("cut", None, trust=False, changes={"rounds": 3, "executor": "inline"}))
    assert cut.refresh().digest == whole.digest


def test_the_command_takes_a_file_and_flags_over_the_record(train, capsys, tmp_path: Path) -> None:
    train(**SMALL | {"rounds": 1}, name="parent", lr=0.3)
    (tmp_path / "train.toml").write_text('lr = 0.2\nrounds = 2\nexecutor = "inline"\n')
    arguments = ("train", str(tmp_path / "train.toml"), "--from", "parent@best", "--name", "fork", "--rounds", "1")
    assert command(capsys, *arguments)[0] == 0
    run = rw.open_run("fork")
    assert run.done == 1
    assert run.config["algorithm"]["lr"] == 0.2
    assert run.config["model_options"] == {"hidden": 6}
    assert command(capsys, *arguments)[0] == 0  # the same name and experiment go on


CANNOT = [
    (["--from", "plain"], 2, "plain is no stored round such as RUN@12; name one, as plain@last, or give"),
    (["--from", "plain@9"], 1, "no committed round 9"),
    (["--from", "nobody@1"], 1, "no run 'nobody'"),
    (["--from", "plain@1", "--start-from", "x.pt"], 2, "a run begins with plain@1 or with x.pt"),
    (["--from", "plain@1", "--name", "plain"], 1, "plain is another experiment (start_from None -> "),
    (["--from", "plain@1", "--init", "per-partition"], 2, "init = per-partition gives each partition"),
    (["--from", "plain@1", "--model-options", '{"hidden": 7}'], 1, "'fc1.weight' is float of shape (6, 64)"),
]


def test_what_cannot_be_is_one_clear_line(stored, capsys) -> None:
    stored("plain")
    for arguments, code, said in CANNOT:
        found, _, error = command(capsys, "train", *arguments, "--executor", "inline")
        assert found == code
        assert said in error.splitlines()[-1]


@pytest.mark.thorough
def test_a_parent_that_has_changed_is_refused(stored, train, tmp_path: Path) -> None:
    parent = stored("plain")
    config = rw.fork("plain@2", executor="inline", name="fork", rounds=1)
    shutil.rmtree(parent.path)
    with pytest.raises((NotARun, CheckpointError, RoundMissing)):
        rw.train(config)
    train(**SMALL, name="plain")  # the same bits, but another run
    with pytest.raises(CheckpointError, match="is not the round that the run was to begin with"):
        rw.train(config)
    assert not (tmp_path / "runs" / "fork.zarr").exists()
