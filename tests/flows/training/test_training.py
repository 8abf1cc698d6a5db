"""The Prefect flow, on a server of its own: what it leaves there, and how it goes on from the store."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import psutil
import pytest

import roundweave as rw
from roundweave.flows.serving.server import start_server
from roundweave.flows.stored import Run
from roundweave.storage.errors import ExperimentDiffers, RoundweaveError, RunBusy
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.lease import hold_lease
from tests.patience import PATIENCE

pytestmark = pytest.mark.prefect

SMALL = {"model": "logistic", "partitions": 3, "local_steps": 2}


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root for all runs of this module."""
    return tmp_path_factory.mktemp("runs")


@pytest.fixture(scope="module")
def run(root: Path) -> Run:
    """A run whose name no other run has: those of a test process share one Prefect server."""
    name = f"taught-{uuid.uuid4().hex[:8]}"
    return rw.train(rw.TrainConfig(**SMALL, executor="inline", rounds=4, window=3, name=name, root=root))


def test_the_flow_returns_the_run(run) -> None:
    assert isinstance(run, Run)
    assert (run.status, run.done) == ("complete", 4)


def test_prefect_keeps_a_bar_a_table_a_plot_and_every_round(run) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import ArtifactFilter, ArtifactFilterKey, TaskRunFilter, TaskRunFilterName

    with get_client(sync_client=True) as client:
        of_this_run = ArtifactFilter(key=ArtifactFilterKey(like_=f"{run.name}-%"))
        artifacts = {artifact.key: artifact for artifact in client.read_artifacts(artifact_filter=of_this_run)}
        assert artifacts[f"{run.name}-progress"].data == 100.0
        assert '"round": 4' in artifacts[f"{run.name}-history"].data
        assert "data:image/png;base64," in artifacts[f"{run.name}-plot"].data
        assert committed_rounds(client, run) == [1, 2, 3, 4]
        first_window = TaskRunFilter(name=TaskRunFilterName(any_=["rounds 1 to 3"]))
        assert client.read_task_runs(task_run_filter=first_window)


def committed_rounds(client, run: Run) -> list[int]:
    """The rounds of all events of a run; they arrive a moment after they were sent."""
    for _ in range(100):
        found = client.request(
            "POST", "/events/filter", json={"filter": {"event": {"name": ["roundweave.round.committed"]}}}
        ).json()
        rounds = sorted(
            row["round"]
            for event in found["events"]
            if event["resource"]["prefect.resource.id"] == f"roundweave.run.{run.name}"
            for row in event["payload"]["rounds"]
        )
        if len(rounds) >= run.done:
            return rounds
        time.sleep(0.1)
    return rounds


def test_a_flow_run_has_the_name_of_its_run_and_logs_the_scores(run) -> None:
    from prefect import get_client
    from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterName, LogFilter, LogFilterFlowRunId

    with get_client(sync_client=True) as client:
        (flow,) = client.read_flow_runs(flow_run_filter=FlowRunFilter(name=FlowRunFilterName(any_=[run.name])))
        assert flow.state_type == "COMPLETED"
        of_this = LogFilter(flow_run_id=LogFilterFlowRunId(any_=[flow.id]))
        messages = [log.message for log in client.read_logs(of_this)]
    for round, loss in run.history()["loss"].items():
        if round:
            (line,) = [message for message in messages if message.startswith(f"round {round}/4: ")]
            assert f"loss {loss:.4f}" in line


def test_events_have_one_name_and_are_at_most_one_a_round(run) -> None:
    from prefect import get_client

    with get_client(sync_client=True) as client:
        assert committed_rounds(client, run) == [1, 2, 3, 4]
        content = {"filter": {"event": {"prefix": ["roundweave"]}}, "limit": 50}
        events = client.request("POST", "/events/filter", json=content).json()["events"]
    of_run = f"roundweave.run.{run.name}"
    ours = [event["event"] for event in events if event["resource"]["prefect.resource.id"] == of_run]
    assert {*ours} <= {"roundweave.round.committed", "roundweave.run.completed"}
    assert 1 <= ours.count("roundweave.round.committed") <= 4


def test_more_rounds_go_on_and_equal_a_run_in_one_go(root, train) -> None:
    longer = train(**SMALL, rounds=6, name="longer", root=root)
    train(**SMALL, rounds=4, name="extended", root=root)
    extended = rw.train(rw.TrainConfig(**SMALL, executor="inline", rounds=6, name="extended", root=root))
    assert extended.done == 6
    assert extended.digest == longer.digest
    assert extended.round(4).commit.token != extended.round(5).commit.token


def test_another_experiment_under_the_same_name_is_refused_by_its_fields(run, root, train) -> None:
    with pytest.raises(ExperimentDiffers, match=r"seed 0 -> 1; .*data: other examples|seed 0 -> 1") as refused:
        train(**SMALL | {"local_steps": 5}, seed=1, rounds=4, name=run.name, root=root)
    assert "local_steps 2 -> 5" in str(refused.value)
    assert f"give this one another --name, or go on with that one: `roundweave resume {run.name}`" in str(
        refused.value
    )


def test_where_a_run_of_the_name_failed_in_its_first_round_it_is_said_how_to_delete_it(own, train) -> None:
    fails = "def loss(outputs, targets):\n    return outputs.sum() if len(outputs) <= 2 else 1 / 0"
    with pytest.raises(RoundweaveError, match="round 1: "):
        train(**SMALL, name="failed", loss=f"{own(fails)}:loss", held_out=0)
    with pytest.raises(ExperimentDiffers, match="that one, which has no round: `roundweave rm failed`"):
        train(**SMALL, name="failed")


def test_a_second_writer_is_refused_while_the_first_is_at_work(run, root, train) -> None:
    with hold_lease(place_of(run.path), "another"), pytest.raises(RunBusy, match="is being written by process"):
        train(**SMALL, rounds=9, name=run.name, root=root)


def test_functions_of_a_notebook_are_kept_by_value_and_scores_that_are_no_numbers_are_reported(root) -> None:
    namespace: dict[str, object] = {"__name__": "__main__"}
    source = """
import torch
def data():
    return torch.arange(80.0).reshape(40, 2) / 80, torch.arange(40) % 2
def model():
    return torch.nn.Linear(2, 2)
"""
    exec(source, namespace)
    given = {name: namespace[name] for name in ("data", "model")}
    fields = SMALL | given | {"rounds": 2, "root": root, "held_out": 0}
    run = rw.train(rw.TrainConfig(**fields, name="notebook"))
    assert run.done == 2
    assert run.config["model"]["name"] == "model"
    assert "algorithm" in run.config


def test_a_server_ends_with_the_process_that_started_it(tmp_path) -> None:
    script = (
        "import sys, time\nfrom pathlib import Path\nfrom roundweave.flows.serving.server import start_server\n"
        "server = start_server(Path(sys.argv[1]))\nprint(server.process.pid, flush=True)\ntime.sleep(60)\n"
    )
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
    line = [sys.executable, "-c", script, str(tmp_path)]
    with subprocess.Popen(line, stdout=subprocess.PIPE, env=environment) as process:
        assert process.stdout is not None
        server = psutil.Process(int(process.stdout.readline()))
        process.send_signal(signal.SIGKILL)
    server.wait(timeout=PATIENCE)


def test_the_users_own_api_is_respected(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:1/api")
    assert start_server(tmp_path) is None


def test_a_damaged_round_is_done_again_to_the_same_bits_and_named(train, root, flip) -> None:
    run = train(**SMALL, rounds=3, name="damaged", root=root)
    before = run.digest
    chunk = run.path / "params" / "1.weight" / "c" / "3" / "0" / "0"
    flip(chunk)
    again = train(**SMALL, rounds=3, name="damaged", root=root)
    assert (again.done, again.digest, again.damaged) == (3, before, [3])
