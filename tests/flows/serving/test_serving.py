"""Served flows: on a schedule, or run by hand, from a real Prefect server."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.client.orchestration import get_client

from flows.serving.process import Server
from flows.serving.server import prefect_api, stop_server
from flows.stored import open_run
from tests.flows.prefect_server import PrefectServer, command_line, rounds_done, until

BIN = Path(sys.executable).parent

SERVE = """
from prefect import serve
from flows import merge_flow, train_flow

if __name__ == "__main__":
    small = {"data": "digits", "executor": "inline", "algorithm": "fed_avg", "local_steps": 2}
    nightly = train_flow.to_deployment(
        name="nightly", cron="0 2 * * *", parameters={"config": {**small, "name": "nightly", "rounds": 2}}
    )
    merged = merge_flow.to_deployment(
        name="merged",
        parameters={"config": {"networks": ["nightly@1", "nightly@2"], "executor": "inline", "points": 3}},
    )
    serve(nightly, merged)
"""

OFTEN = """
from flows import train_flow

if __name__ == "__main__":
    small = {"data": "digits", "executor": "inline", "algorithm": "fed_avg", "local_steps": 2, "rounds": 2}
    train_flow.serve(name="often", interval=5, parameters={"config": small})
"""


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    running = PrefectServer(tmp_path_factory.mktemp("prefect")).start()
    yield running
    running.kill()


@pytest.fixture
def environment(server: PrefectServer, tmp_path: Path) -> dict[str, str]:
    """A Prefect server's address and a root for runs, as a user's shell would have them."""
    own = {"ROUNDWEAVE_ROOT": str(tmp_path / "runs"), "PREFECT_LOGGING_LEVEL": "ERROR", "COLUMNS": "200"}
    return server.environment | own | {"PREFECT_API_URL": server.api}


class ended:  # noqa: N801
    """A process with its log, ended with the block."""

    def __init__(self, line: list[object], environment: dict[str, str], log: Path) -> None:
        with log.open("wb") as output:
            self.process = subprocess.Popen(
                [str(word) for word in line], env=environment, stdout=output, stderr=output, start_new_session=True
            )

    def __enter__(self) -> None:
        return None

    def __exit__(self, *error: object) -> None:
        os.killpg(self.process.pid, signal.SIGTERM)
        try:
            self.process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.wait()


def completed(server: PrefectServer, scheduled: bool) -> list[object]:
    """The flow runs that completed, of those that a schedule began or of those that were asked for."""
    runs = server.asked("flow_runs")
    return [run for run in runs if run["state_type"] == "COMPLETED" and run["auto_scheduled"] == scheduled]


def test_served_flows_run_when_they_are_asked_to_and_run_again(server, environment, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(SERVE)
    log = tmp_path / "serve.log"

    with ended([sys.executable, tmp_path / "serve.py"], environment, log):
        until(lambda: {"nightly", "merged"} <= {found["name"] for found in server.asked("deployments")}, log)
        names = ["roundweave-train/nightly"] * 2 + ["roundweave-merge/merged"] * 2
        for number, name in enumerate(names, start=1):
            subprocess.run([BIN / "prefect", "deployment", "run", name], env=environment, check=True)
            until(lambda number=number: len(completed(server, scheduled=False)) == number, log)
    nightly = open_run(tmp_path / "runs" / "nightly.zarr")
    assert (nightly.status, nightly.done) == ("complete", 2)
    merged = [open_run(path).digest for path in (tmp_path / "runs").glob("merge-*.zarr")]
    assert len(merged) == 2
    assert merged[0] == merged[1]


def test_a_schedule_fires_by_itself_again_and_again(server, environment, tmp_path: Path) -> None:
    (tmp_path / "serve.py").write_text(OFTEN)
    log = tmp_path / "serve.log"

    with ended([sys.executable, tmp_path / "serve.py"], environment | {"PREFECT_RUNNER_POLL_FREQUENCY": "1"}, log):
        until(lambda: len(completed(server, scheduled=True)) >= 2, log)
    runs = [open_run(path) for path in (tmp_path / "runs").glob("*.zarr")]
    assert [(run.status, run.done) for run in runs].count(("complete", 2)) >= 2


ON_DASK = """
from flows import train_flow

if __name__ == "__main__":
    train_flow({"model": "logistic", "workers": 1, "rounds": 1, "name": "heard"})
"""


def test_what_dask_tells_stays_off_the_screen_while_all_is_well(environment, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ON_DASK)
    line, told = [sys.executable, tmp_path / "once.py"], environment | {"PREFECT_LOGGING_LEVEL": "INFO"}
    said = subprocess.run(line, env=told, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert "round 1/1" in said
    assert "distributed" not in said


CONFIG = """
data = "digits"
executor = "inline"
partitions = 2
rounds = 2
algorithm = {name = "fed_avg", local_steps = 2}
"""


def test_the_workers_of_a_pool_train_what_is_deployed_on_its_schedule(server, environment, tmp_path: Path) -> None:
    (tmp_path / "often.toml").write_text(CONFIG)
    log, told = tmp_path / "worker.log", environment | {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    deploy = command_line("deploy", "often.toml", "--work-pool", "machines", "--interval", "5")
    prefect = [BIN / "prefect", "work-pool", "create", "machines", "--type", "process"]
    subprocess.run(prefect, env=told, check=True, capture_output=True)
    said = subprocess.run(deploy, env=told, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("deployed often to machines; its page: http://127.0.0.1:")
    with ended([BIN / "prefect", "worker", "start", "--pool", "machines"], told, log):
        until(lambda: [rounds_done(run) for run in (tmp_path / "runs").glob("*.zarr")].count(2) >= 2, log)

    for name in ("often", "never"):  # a deployment that is there, and one that is not
        line = command_line("deploy", "often.toml", "--work-pool", "absent", "--name", name)
        refused = subprocess.run(line, check=False, env=told, cwd=tmp_path, capture_output=True, text=True)
        says = "Prefect has no work pool 'absent'; `prefect work-pool create absent --type process` makes one"
        assert (refused.returncode, refused.stderr) == (2, f"error: {says}\n")


def test_there_is_nowhere_to_deploy_to_without_a_server(tmp_path: Path) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    (tmp_path / "often.toml").write_text(CONFIG)
    line = command_line("deploy", "often.toml", "--work-pool", "machines")
    home = own | {"HOME": str(tmp_path)}
    done = subprocess.run(line, check=False, env=home, cwd=tmp_path, capture_output=True, text=True)
    assert (done.returncode, done.stderr.splitlines()) == (
        2,
        ["error: no Prefect server to deploy to; set PREFECT_API_URL to that of the work pool"],
    )


@pytest.mark.parametrize(
    ("line", "told"),
    [
        (["serve", "absent.toml"], "absent.npz"),
        (["serve", "own.toml"], "absent.py"),
        (["serve", "often.toml", "--cron", "nightly"], "'nightly' is no schedule; give one such as '0 2 * * *'"),
        (["deploy", "often.toml", "--work-pool", "any", "--cron", "nightly"], "'nightly' is no schedule"),
        (
            ["deploy", "often.toml", "--work-pool", "any", "--cron", "0 2 * * *", "--interval", "60"],
            "two schedules",
        ),
    ],
)
def test_what_could_never_be_trained_is_refused_at_once(environment, tmp_path: Path, line, told) -> None:
    (tmp_path / "often.toml").write_text(CONFIG)
    (tmp_path / "absent.toml").write_text(CONFIG.replace("digits", "absent.npz"))
    (tmp_path / "own.toml").write_text(f'{CONFIG}model = "absent.py:Net"')
    command, where = command_line(*line), {"env": environment, "cwd": tmp_path}
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60, **where)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert told in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_with_a_server_of_its_own_and_ends_in_order(
    tmp_path: Path, end: signal.Signals
) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    (tmp_path / "often.toml").write_text(CONFIG)
    line = command_line("serve", "often.toml", "--interval", "5", "--name", "often")
    log, runs = tmp_path / "serve.log", tmp_path / "runs"
    with log.open("wb") as output:
        process = subprocess.Popen(
            line, env=own | {"PREFECT_RUNNER_POLL_FREQUENCY": "1"}, cwd=tmp_path, stdout=output, stderr=output
        )
    try:
        trained = lambda: [rounds_done(run) for run in runs.glob("*.zarr")].count(2)  # noqa: E731
        until(lambda: trained() >= 2 or process.poll() is not None, log)
        address = re.search(r"page: (http://127\.0\.0\.1:\d+)/deployments/deployment/", log.read_text())[1]
        assert "<title>Prefect" in httpx.get(address, follow_redirects=True).text
        family = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(end)
        code = process.wait(60)
    assert (code, log.read_text().splitlines()[-1]) == (0, "no longer served; its schedule is paused")
    assert "Traceback" not in log.read_text()
    assert psutil.wait_procs(family, timeout=30)[1] == []


def test_the_server_of_a_root_listens_to_this_machine_alone(tmp_path: Path) -> None:
    server = Server().settle(tmp_path / ".prefect")
    try:
        port = int(server.url().split(":")[2].removesuffix("/api"))
        found = {
            (c.laddr.ip, c.laddr.port)
            for c in psutil.Process(server.process.pid).net_connections("inet")
            if c.status == psutil.CONN_LISTEN
        }
    finally:
        server.stop()
    assert found == {("127.0.0.1", port)}


def test_the_server_of_a_root_answers_this_process_alone(tmp_path: Path) -> None:
    with prefect_api(tmp_path), get_client(sync_client=True) as client:
        url = os.environ["PREFECT_API_URL"]
        client.read_flow_runs(limit=1)
        stranger = httpx.post(f"{url}/flow_runs/filter", json={})
        guess = httpx.post(f"{url}/flow_runs/filter", json={}, auth=("roundweave", "guess"))
    stop_server(tmp_path)
    assert (stranger.status_code, guess.status_code) == (401, 401)
