"""`auto` trains by what is chosen, and goes on by what was chosen."""

from __future__ import annotations

from pathlib import Path

import pytest

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.planning.describing import describe_here
from roundweave.flows.planning.plan import plan
from roundweave.storage.errors import UsageError


def config(root: Path, **more: object) -> rw.TrainConfig:
    values = {"data": "digits", "algorithm": "auto", "workers": 1, "lr": 0.2, "rounds": 2, "root": root}
    return rw.TrainConfig(**values | {"name": "auto"} | more)


@pytest.fixture(scope="module")
def root(cluster: object, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root with a run whose strategy was chosen in the flow, as a served one's is.

    Where the cluster is, the planner's own workers are forked at once.
    """
    root = tmp_path_factory.mktemp("runs")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("roundweave.flows.plugins.race.choosing.HEAT", 0.1)
        assert train_flow.fn(config(root)).config["planned"]["strategy"].startswith("single")
    return root


def test_it_trains_and_goes_on_without_choosing_again(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = rw.open_run("auto", root)
    algorithm = run.config["algorithm"]
    assert (algorithm["name"], algorithm["lr"]) == ("fed_avg", algorithm["batch_size"] / 32 * 0.2)
    assert (run.done, run.config["executor"], run.config["planned"]["workers"]) == (2, "inline", 1)
    later = rw.train(config(root, rounds=4))
    assert "auto" not in capsys.readouterr().err
    assert (later.done, later.config["planned"]) == (4, run.config["planned"])
    assert later.verify().sound


def test_another_experiment_of_the_name_is_refused(root: Path) -> None:
    with pytest.raises(rw.RoundweaveError, match=r"auto is another experiment \(lr "):
        rw.train(config(root, lr=0.3))


def test_a_run_that_was_not_planned_goes_on_by_its_own_algorithm(tmp_path: Path) -> None:
    rw.train(config(tmp_path, algorithm="fed_avg", executor="inline", rounds=1))
    with pytest.raises(UsageError, match="auto was not begun by auto; name its algorithm, or give another name"):
        rw.train(config(tmp_path))


def test_a_new_run_in_the_same_process_is_of_the_file_as_it_is_now(tmp_path: Path) -> None:
    """As in a notebook, in which a file is written anew between two runs."""
    file, digests = tmp_path / "night.csv", []
    for first in (0, 100):
        rows = "\n".join(f"{number},{number % 2}" for number in range(first, first + 40))
        file.write_text(f"a,label\n{rows}\n")
        described = describe_here(plan(rw.TrainConfig(data=f"csv:{file}", partitions=2)))
        assert described is not None
        digests.append(described.description.digest)
        assert described.partitions.load(0, 0).inputs.min() >= first
    assert digests[0] != digests[1]
