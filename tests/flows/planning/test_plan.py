"""A real cluster is measured, a strategy chosen, written to a file, and done as it says."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest

import roundweave as rw
from flows.config.files import read_toml, write_toml
from flows.planning.plan import Plan, plan
from storage.errors import UsageError
from tests.flows.command.in_process import run


@pytest.fixture(scope="module")
def planned(tmp_path_factory: pytest.TempPathFactory) -> Plan:
    """A plan for two workers."""
    root = tmp_path_factory.mktemp("planned")
    config = rw.TrainConfig(data="digits", algorithm="auto", lr=0.2, rounds=3, workers=2, root=root)
    made = plan(config)
    assert list(root.iterdir()) == []  # trials are deleted
    return made


def test_all_strategies_are_predicted_or_refused(planned: Plan) -> None:
    told = {each.strategy.name: each for each in planned.predictions}
    assert {
        "single",
        "synchronous, graph",
        "synchronous, gang",
        "local epoch, gang",
        "asynchronous",
    } <= told.keys()
    assert told["hybrid"].refused == (
        "nothing is trained before fc1, the first of the shared layers; leave hybrid out"
    )
    for each in planned.predictions:
        if each.refused is None:
            assert 0 < each.fastest <= each.seconds <= each.slowest
            assert each.memory > planned.work.state
            assert each.epoch == pytest.approx(each.seconds * each.strategy.rounds(planned.work))
            assert each.bound in each.parts


def test_the_least_epoch_is_chosen(planned: Plan) -> None:
    least = min(each.epoch for each in planned.predictions if each.refused is None)
    assert planned.chosen.epoch <= 1.1 * least
    assert planned.reason.startswith(planned.chosen.strategy.name)


def test_what_was_measured_is_of_this_machine(planned: Plan) -> None:
    measured = planned.measured
    assert measured.workers == 2
    for pace in (measured.together, *measured.alone.values()):
        for number in dataclasses.astuple(pace):
            assert number > 0
    assert measured.task > 0
    assert measured.level > 0


def test_the_file_has_the_plan_and_does_it(planned: Plan, tmp_path: Path) -> None:
    file = tmp_path / "chosen.toml"
    write_toml(file, planned.planned)
    read = rw.TrainConfig(**read_toml(file))
    assert read == planned.planned
    done = rw.train(read.model_copy(update={"root": str(tmp_path), "name": "done"}))
    assert done.done == read.rounds
    assert done.config["planned"]["strategy"] == planned.chosen.strategy.name
    assert done.config["planned"]["epochs"].keys() | done.config["planned"]["refused"].keys() == {
        each.strategy.name for each in planned.predictions
    }


def test_the_command_prints_and_shows(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file, root = str(tmp_path / "chosen.toml"), str(tmp_path)
    options = ["--algorithm", "auto", "--workers", "1", "--rounds", "4", "--root", root]
    code, out, _ = run(capsys, "plan", *options, "--save", file)
    assert code == 0
    assert out.startswith("strategy")
    assert f"`roundweave train {file}` does it so" in out.replace("\n", "")
    code, out, _ = run(capsys, "train", file, "--name", "chosen")
    assert code == 0
    code, out, _ = run(capsys, "show", "chosen", "--root", root)
    assert "a round predicted" in out
    assert "times as long" in out
    code, out, _ = run(capsys, "show", "chosen", "--root", root, "--json")
    told = json.loads(out)["planned"]
    assert told["taken"] > 0
    assert told["seconds"] > 0
    code, out, _ = run(capsys, "plan", *options, "--json")
    told = json.loads(out)
    assert told["chosen"] in told["strategies"]
    assert told["config"]["rounds"] == 4
    assert told["workers"] == 1


def test_clusters_that_are_not_here_are_simulated(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    figure, root = tmp_path / "curves.png", str(tmp_path)
    options = ["--algorithm", "auto", "--workers", "2", "--root", root, "--simulate", "2,1000", "--fan-in", "16"]
    code, out, _ = run(capsys, "plan", *options, "--plot", str(figure), "--json")
    assert code == 0
    assert figure.read_bytes().startswith(b"\x89PNG")
    told = json.loads(out)
    assert told["cluster"]["fan_in"] == 16
    assert {point["workers"] for point in told["points"]} == {2, 1000}
    assert told["costs"].keys() == {"graph", "gang", "server"}
    for costs in told["costs"].values():
        assert costs["step"] > 0
        assert costs["task"] > 0
    seconds = {(point["schedule"], point["workers"]): point["seconds"] for point in told["points"]}
    assert seconds["synchronous, graph", 1000] > 10 * seconds["synchronous, graph", 2]
    assert not [path for path in tmp_path.iterdir() if path.name.startswith(".trials")]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--save", "none/plan.toml"], "none/plan.toml: there is no folder none; make it first"),
        (["--save", "plan.txt"], "plan.txt: a configuration ends in .toml"),
        (["--plot", "a.png", "--fan-in", "4"], "--plot, --fan-in: of a simulated cluster only"),
        (["--simulate", "10,many"], "--simulate 10,many: give numbers of workers, such as 10,100,1000"),
        (["--simulate", "10", "--save", "a.toml"], "a simulation chooses nothing that could be saved"),
        (["--simulate", "10", "--machines", "0"], "machines = 0"),
        (["--simulate", "10", "--plot", "a.txt"], "a.txt: a plot ends in .png, .pdf, .svg"),
        (["--algorithm", "sync_sgd"], "batches of whole partitions depend on how many there are; give batch_size"),
        (["--data", "none"], "unknown data 'none'"),
        (["none.toml"], "cannot read none.toml"),
    ],
)
def test_what_cannot_be_planned_is_said_at_once(
    capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    code, out, err = run(capsys, "plan", *arguments)
    assert (code, out) == (2, "")
    assert message in err
    assert err.count("\n") == 1


def test_data_with_partitions_of_their_own_are_not_dealt(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    lines = (
        "import torch",
        "def data(partition, partitions):",
        "    return torch.ones(8, 2), torch.zeros(8).long()",
    )
    own.write_text("\n".join(lines))
    with pytest.raises(UsageError, match="these data give each its own"):
        plan(rw.TrainConfig(data=f"{own}:data", root=tmp_path))
