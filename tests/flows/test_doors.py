"""One way through: whichever door a configuration comes by, it is resolved once, before any process is started."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows.command import app

pytestmark = pytest.mark.prefect

Door = Callable[[dict[str, object]], None]


def by_command(fields: dict[str, object]) -> None:
    flags = [f"--{name.replace('_', '-')}={value}" for name, value in fields.items()]
    app.application(["train"])(["train", *flags], standalone_mode=False)


def by_function(fields: dict[str, object]) -> None:
    rw.train(rw.TrainConfig(**fields))


def by_flow(fields: dict[str, object]) -> None:
    from roundweave.flows import train_flow

    train_flow.fn(rw.TrainConfig(**fields))


@pytest.fixture
def no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Starting any process, or looking for a scheduler, fails the test."""

    def refuse(*arguments: object, **options: object) -> None:
        raise AssertionError("a process is started for what cannot be run")

    monkeypatch.setattr("subprocess.Popen", refuse)
    monkeypatch.setattr("roundweave.tasks.executors.clusters.connecting.LocalCluster", refuse)
    monkeypatch.setattr("roundweave.tasks.executors.clusters.connecting.Client", refuse)


WRONG = {
    "data": ({"data": "mnist:nowhere"}, "no train-images-idx3-ubyte.gz"),
    "partitions": ({"partitions": 5000}, "5000 partitions need at least as many examples"),
    "two at once": ({"model": "mpl", "optimizer": "Adamm", "partitions": 5000}, "unknown model 'mpl'"),
}


@pytest.mark.parametrize("door", [by_command, by_function, by_flow])
@pytest.mark.parametrize("case", WRONG)
def test_what_is_wrong_is_said_before_anything_is_started(no_process, door: Door, case: str) -> None:
    fields, says = WRONG[case]
    with pytest.raises(rw.RoundweaveError, match=says):
        door(fields)


def test_a_merge_says_what_is_wrong_before_anything_is_started(no_process) -> None:
    with pytest.raises(rw.RoundweaveError, match=r"nowhere\.pt: there is no such file"):
        rw.merge(rw.MergeConfig(networks=("nowhere.pt", "nothing.pt"), model="mlp"))


@pytest.mark.parametrize("door", [pytest.param(by_command, marks=pytest.mark.thorough), by_function])
def test_a_configuration_is_resolved_once(own, tmp_path: Path, door: Door) -> None:
    source = """
from pathlib import Path
from roundweave import Algorithm, Gradient, Mean, Sgd
def algorithm(lr=0.1):
    with Path(__file__).with_name("calls").open("a") as calls:
        calls.write("x")
    return Algorithm(Gradient(), Mean(), Sgd(lr))
"""
    fields = {
        "algorithm": f"{own(source)}:algorithm",
        "lr": 0.2,
        "executor": "inline",
        "rounds": 1,
        "name": "once",
    }
    door(fields)
    assert (tmp_path / "calls").read_text() == "x"
    assert "apply=Sgd(lr=0.2, " in rw.open_run("once").attributes["algorithm"]
