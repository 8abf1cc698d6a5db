"""Deployments' runs that fail or take too long: what is tried again is the same run, from its last commit on."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime, timedelta
from itertools import count
from pathlib import Path
from typing import Any

import pytest
from prefect import flow

import roundweave as rw
from roundweave.flows import train_flow
from roundweave.flows.config.files import write_toml
from roundweave.storage.errors import RoundFailed
from roundweave.storage.runs.listing import looked_through
from tests.flows.nights import night
from tests.flows.prefect_server import command_line, ended

pytestmark = pytest.mark.prefect
THOROUGH = pytest.mark.thorough

OWN = """
import time
from pathlib import Path
import torch

HERE = Path({here!r})

def data():
    return torch.eye(60), torch.arange(60) % 2

def loss(outputs, targets):
    # A map has 20 examples, and those that are held out are fewer. Round 3 is the first that it disturbs.
    if len(outputs) == 20 and list(HERE.glob("runs/*.zarr/commits/2.json")):
        left = int((HERE / "raises").read_text())
        if left:
            (HERE / "raises").write_text(str(left - 1))
            raise ValueError("the site is down")
        if (HERE / "hangs").exists():
            time.sleep(600)
    return torch.nn.functional.cross_entropy(outputs, targets)
"""

FIELDS = {"partitions": 2, "held_out": 0.1, "rounds": 4, "batch_size": 20, "local_steps": 1, "window": 1}


@pytest.fixture
def nightly(own, tmp_path: Path) -> Callable[..., rw.TrainConfig]:
    """A configuration whose round 3 fails so often: each of its two maps is tried twice."""
    file = own(OWN.format(here=str(tmp_path)))

    def config(failures: int = 0, **fields: Any) -> rw.TrainConfig:
        (tmp_path / "raises").write_text(str(4 * failures))
        return night(data=f"{file}:data", loss=f"{file}:loss", algorithm="fed_avg", **FIELDS | fields)

    return config


@pytest.mark.parametrize(
    "named", [{"name": "again-{date}"}, pytest.param({"name": "again", "on_complete": "new"}, marks=THOROUGH)]
)
def test_a_run_that_failed_is_tried_again_and_goes_on_after_its_last_round(
    server, nightly, named, monkeypatch
) -> None:
    """The day is over meanwhile: the name stays that of the first attempt."""
    days = (datetime(2031, 2, 1) + timedelta(days) for days in count())
    for module in ("plugins.scheduled.dates", "plugins.scheduled"):
        monkeypatch.setattr(f"roundweave.flows.{module}.moment", lambda *_: next(days))
    run = train_flow(nightly(failures=2, retries=2, **named))
    assert isinstance(run, rw.Run)
    assert list(looked_through(run.placed["root"])) == [run.name]
    assert (run.status, run.done) == ("complete", 4)
    assert [run.round(number).commit.epoch for number in range(1, 5)] == [1, 1, 3, 3]
    (found,) = server.flow_runs(run.name)
    assert (found["run_count"], found["state_name"], found["empirical_policy"]["retries"]) == (3, "Completed", 2)


@pytest.mark.thorough
def test_it_is_tried_as_often_as_it_says_and_not_once_more(server, nightly) -> None:
    with pytest.raises(RoundFailed):
        train_flow(nightly(failures=2, retries=1, name="twice"))
    run = rw.open_run("twice")
    (found,) = server.flow_runs("twice")
    assert (run.status, run.done, found["run_count"]) == ("failed", 2, 2)
    assert train_flow(nightly(name="twice")).status == "complete"
    with pytest.raises(RoundFailed):
        rw.train(nightly(failures=1, retries=1, name="by-hand"))


@pytest.mark.thorough
def test_a_subflow_without_a_name_goes_on_when_its_parent_is_tried_again(server, nightly, tmp_path: Path) -> None:
    """Each of two subflows with its own run."""
    config, runs = nightly(failures=1), list[rw.Run]()

    @flow(retries=1, persist_result=False)
    def parent() -> None:
        runs[:] = [train_flow(config.model_copy(update={"seed": seed})) for seed in (0, 1)]

    parent()
    assert sorted(looked_through(tmp_path / "runs")) == sorted(run.name for run in runs)
    assert [(run.done, run.config["seed"]) for run in runs] == [(4, 0), (4, 1)]
    assert len({run.round(number).commit.token for run in runs[:1] for number in (2, 3)}) == 2


@pytest.mark.slow
@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_deployment_says_how_often_and_how_long_its_runs_are_tried(
    server, environment, tmp_path: Path, nightly, executor: str
) -> None:
    """Both of its attempts hang in round 3. The next night goes on with the run, whose lease was let go."""
    tried = {"retries": 1, "retry_delay": 1, "timeout": 15, "tags": ["nightly", "digits"], "concurrency": 3}
    write_toml(tmp_path / "night.toml", nightly(executor=executor, workers=1, name="night-{date}", **tried))
    (tmp_path / "hangs").touch()
    log = tmp_path / "serve.log"
    with ended(command_line("serve", str(tmp_path / "night.toml"), "--name", executor), environment, log):
        deployment = server.deployed(executor, log)
        assert (deployment["tags"], deployment["global_concurrency_limit"]["limit"]) == (["nightly", "digits"], 3)
        hung = server.run(executor, log, "TimedOut")
        (run,) = map(rw.open_run, (tmp_path / "runs").glob("*.zarr"))
        assert (run.status, run.done) == ("interrupted", 2)
        assert (hung["name"], hung["run_count"], sorted(hung["tags"])) == (run.name, 2, ["digits", "nightly"])
        (tmp_path / "hangs").unlink()
        assert server.run(executor, log)["name"] == run.name
    assert run.refresh().status == "complete"
    assert len(list((tmp_path / "runs").glob("*.zarr"))) == 1
