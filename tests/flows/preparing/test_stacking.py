"""Partitions that are stacked, as an option of a run: recorded, gone on with, replayed; and what is refused."""

from __future__ import annotations

import re

import pytest
from distributed import Client

from flows.config.recorded import resumed_config
from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.evidence.forking import fork
from flows.preparing import stacking
from flows.stored import Run as TrainedRun
from storage.errors import ExperimentDiffers, ModelError, UsageError
from tasks.clusters.connecting import connect
from tasks.executors.gang import GangExecutor
from tasks.executors.graph import GraphExecutor
from tasks.rounds import trial
from tests.flows.command.in_process import run as command

FIELDS = {"partitions": 10, "model_options": {"hidden": 16}, "local_steps": 3, "rounds": 2}


@pytest.fixture
def quick(monkeypatch) -> None:
    """A trial in which stacking more always looks faster."""
    monkeypatch.setattr(trial, "_seconds", lambda work, data: 1 / work.algorithm.map.stack)
    monkeypatch.setattr(trial, "LONG", 1e9)


@pytest.fixture
def untried(monkeypatch) -> None:
    """Nothing can be tried any more."""
    monkeypatch.delattr(stacking, "block_seconds")


def stacked(name: str) -> object:
    return resumed_config(name, None, True, {}).algorithm.options["stacked"]


def test_the_number_is_found_once_recorded_and_used_from_then_on(train, quick, capsys, request) -> None:
    run = train(**FIELDS, stacked="auto", name="run")
    line = r"partitions to stack by a trial, ms a partition: 1 1e\+02, 8 12, 16 6.2; stacked 16"
    assert re.search(line, capsys.readouterr().err)
    assert run.config["algorithm"]["stacked"] == 16 == stacked("run")

    request.getfixturevalue("untried")
    assert train(**FIELDS, stacked=16, name="alone").digest == run.digest
    assert TrainedRun(run.address).replay("all").identical
    again = train(**FIELDS | {"rounds": 3}, stacked="auto", name="run")
    assert (again.done, again.digest) == (3, train(**FIELDS | {"rounds": 3}, stacked=16, name="whole").digest)
    assert fork("run@2", name="forked").algorithm.options["stacked"] == 16


def test_the_number_is_part_of_the_experiment(train) -> None:
    train(**FIELDS, stacked=8, name="run")
    with pytest.raises(ExperimentDiffers, match="stacked 8 -> 16"):
        train(**FIELDS, stacked=16, name="run")


def test_a_run_that_was_not_stacked_stays_so(train, untried) -> None:
    run = train(**FIELDS, name="run")
    assert train(**FIELDS | {"rounds": 3}, stacked="auto", name="run").config["algorithm"]["stacked"] == 1
    assert run.done == 2


@pytest.mark.parametrize(
    "fields",
    [
        {"clip_norm": 1.0},
        {"algorithm": "diloco"},
        {"model_options": {"dropout": 0.5}},
        {"model": "cnn", "model_options": {}},
        {"partitions": 1},
        {"ranks": 2},
    ],
)
def test_what_cannot_be_stacked_is_left_off(train, quick, fields, capsys) -> None:
    run = train(**FIELDS | fields, stacked="auto", name="run")
    assert run.config["algorithm"]["stacked"] == 1
    assert "stacked 1" in capsys.readouterr().err
    assert train(**FIELDS | fields, name="plain").digest == run.digest


def test_where_maps_are_long_or_more_takes_longer_nothing_else_is_tried(train, quick, monkeypatch) -> None:
    monkeypatch.setattr(trial, "LONG", 0.0)
    assert train(**FIELDS, stacked="auto", name="long").config["algorithm"]["stacked"] == 1
    monkeypatch.setattr(trial, "LONG", 1e9)
    seconds = {1: 9.0, 8: 3.0, 16: 2.0, 24: 3.0, 40: 1.0}
    asked = []
    monkeypatch.setattr(trial, "_seconds", lambda w, data: asked.append(w) or seconds[w.algorithm.map.stack])
    monkeypatch.setattr(stacking, "_numbers", lambda work, share: [8, 16, 24, 40])
    assert train(**FIELDS, stacked="auto", name="more").config["algorithm"]["stacked"] == 16
    assert [work.algorithm.map.stack for work in asked] == [1, 8, 16, 24]


def test_little_gain_is_none(train, quick, monkeypatch) -> None:
    monkeypatch.setattr(trial, "_seconds", lambda work, data: 1.0 if work.algorithm.map.stack == 1 else 0.9)
    assert train(**FIELDS, stacked="auto", name="run").config["algorithm"]["stacked"] == 1


def test_networks_that_take_much_memory_are_stacked_less(train, quick, monkeypatch) -> None:
    monkeypatch.setattr(stacking, "BYTES", 8 * 4 * 4 * (64 * 16 + 16 + 16 * 10 + 10))
    assert train(**FIELDS, stacked="auto", name="run").config["algorithm"]["stacked"] == 8


def test_a_real_trial_gives_a_number_that_trains(train) -> None:
    run = train(**FIELDS, stacked="auto", name="run")
    assert run.config["algorithm"]["stacked"] in (1, 8, 16)
    assert TrainedRun(run.address).replay("all").identical


@pytest.fixture(scope="module")
def cluster():
    with connect(None, 2) as client:
        yield client


@pytest.mark.parametrize("executor", [GraphExecutor, GangExecutor])
def test_other_executors_find_the_number_and_their_runs_replay_in_another(
    train, cluster: Client, executor
) -> None:
    source = FIELDS | {"split": "dirichlet:0.5", "local_steps": None, "local_epochs": 1}
    run = train(executor(cluster), **source, stacked="auto", name="run")
    number = run.config["algorithm"]["stacked"]
    assert number in (1, 8)
    one = train(**source, stacked=8, name="inline")
    assert TrainedRun(one.address).replay("all", executor="graph", workers=2).identical
    assert train(executor(cluster), **source, stacked=8, name="again").digest == one.digest


PARTITIONED = """
import torch
def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20 + partition, 4, generator=generator)
    return inputs, (inputs.sum(1) > 0).long()
"""


def test_partitions_that_are_loaded_where_they_are_mapped_are_stacked_as_well(train, own, quick) -> None:
    fields = {"data": f"{own(PARTITIONED)}:data", "model": "logistic", "partitions": 10, "rounds": 2}
    run = train(**fields, stacked="auto", name="run")
    assert run.config["algorithm"]["stacked"] == 16
    assert TrainedRun(run.address).replay("all").identical
    with pytest.raises(ModelError, match="draws random numbers"):
        train(**fields | {"model": "mlp", "model_options": {"dropout": 0.5}}, stacked=8, name="no")


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        (
            {"stacked": 8, "momentum": 0.9},
            "stacked = 8 is for exact steps of plain SGD .*options {'momentum': 0.9}",
        ),
        ({"stacked": 8, "step": "fused"}, "not for fused steps"),
        ({"stacked": 8, "algorithm": "diloco"}, "not for optimizer AdamW"),
        ({"stacked": 8, "model_options": {"dropout": 0.5}}, "mlp cannot be stacked: it draws random numbers"),
        ({"stacked": 8, "model": "cnn", "model_options": {}}, "changes its buffer norm1.running_mean"),
        ({"stacked": 8, "ranks": 2}, "stacked = 8 is for networks of one process; leave it out, or ranks"),
        ({"stacked": 0}, "stacked"),
        ({"stacked": 8, "algorithm": "scaffold"}, "algorithm scaffold takes no stacked"),
        ({"stacked": 8, "algorithm": "fed_prox"}, "algorithm fed_prox takes no stacked"),
        ({"stacked": 8, "algorithm": "fed_buff"}, "algorithm fed_buff takes no stacked"),
    ],
)
def test_what_cannot_be_stacked_is_refused_before_any_process(fields, says) -> None:
    with pytest.raises((UsageError, ModelError), match=says):
        resolve(TrainConfig(**FIELDS | fields))


def test_the_command_takes_a_number_or_auto(capsys, tmp_path) -> None:
    words = ["--partitions=10", "--local-steps=2", "--rounds=1", "--executor=inline", f"--root={tmp_path}"]
    code, out, _ = command(capsys, "train", *words, "--stacked=8", "--name=run", "--json")
    assert code == 0, out
    assert resumed_config("run", str(tmp_path), True, {}).algorithm.options["stacked"] == 8
    for word in ("0", "-1", "many", "1.5"):
        code, _, err = command(capsys, "train", *words, f"--stacked={word}", "--name=bad")
        assert code == 2, word
        assert "stacked" in err
        assert len(err.strip().splitlines()) == 1
    assert not (tmp_path / "bad.zarr").exists()
