"""Served flows: on a schedule, or run by hand, from a real Prefect server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import date, datetime, timedelta
from pathlib import Path

import httpx
import psutil
import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.server.schemas.schedules import CronSchedule
from prefect.settings import PREFECT_API_URL, temporary_settings

from roundweave.flows.config.files import read_toml
from roundweave.flows.config.scheduled import scheduled
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.stored import open_run
from roundweave.flows.training.serving import deploy
from roundweave.storage.errors import UsageError
from tests.flows.command.in_process import run as command
from tests.flows.prefect_server import PrefectServer, command_line, rounds_done, until
from tests.patience import PATIENCE
from tests.tasks.sampled import sampled
from tests.training import trained

pytestmark = pytest.mark.prefect

BIN = Path(sys.executable).parent

SERVE = """
from prefect import serve
from roundweave.flows import merge_flow, train_flow

if __name__ == "__main__":
    small = {"data": "digits", "executor": "inline", "algorithm": "fed_avg", "local_steps": 2}
    nightly = train_flow.to_deployment(
        name="nightly", cron="0 2 * * *", parameters={"config": {**small, "name": "nightly", "rounds": 2}}
    )
    merged = merge_flow.to_deployment(
        name="merged",
        parameters={"config": {"networks": ["a@1", "b@1"], "executor": "inline", "points": 3}},
    )
    serve(nightly, merged)
"""


@pytest.fixture
def environment(server: PrefectServer, tmp_path: Path) -> dict[str, str]:
    """A Prefect server's address and a root for runs, as a user's shell would have them."""
    own = {"ROUNDWEAVE_ROOT": str(tmp_path / "runs"), "PREFECT_LOGGING_LEVEL": "ERROR", "COLUMNS": "200"}
    polls = {"PREFECT_RUNNER_POLL_FREQUENCY": "1", "PREFECT_WORKER_QUERY_SECONDS": "1"}
    return server.environment | own | polls | {"PREFECT_API_URL": server.api}


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


@contextmanager
def client_of(server: PrefectServer) -> Iterator[SyncPrefectClient]:
    """A client of the server, which asks again where its database is busy."""
    with temporary_settings({PREFECT_API_URL: server.api}), get_client(sync_client=True) as client:
        yield client


@pytest.mark.parametrize("again", sampled(2, [False, True]))
def test_served_flows_run_when_they_are_asked_to_and_run_again(server, environment, tmp_path, again) -> None:
    """A training, and beside its second time a merge of two networks that are there."""
    for name in "ab":
        trained(tmp_path / "runs", name=name, partitions=1, local_steps=2, rounds=1)
    (tmp_path / "serve.py").write_text(SERVE)
    log = tmp_path / "serve.log"

    def ask(*names: str) -> None:
        ids = {found["name"]: found["id"] for found in server.asked("deployments")}
        with client_of(server) as client:
            asked = [str(client.create_flow_run_from_deployment(ids[name]).id) for name in names]
        these = {"id": {"any_": asked}, "state": {"type": {"any_": ["COMPLETED"]}}}
        until(lambda: len(server.asked("flow_runs", flow_runs=these)) == len(asked), log)

    with ended([sys.executable, tmp_path / "serve.py"], environment, log):
        until(lambda: {"nightly", "merged"} <= {found["name"] for found in server.asked("deployments")}, log)
        ask("nightly")
        if again:
            ask("nightly", "merged")
            (merged,) = (tmp_path / "runs").glob("merge-*.zarr")
            assert open_run(merged).status == "complete"
    nightly = open_run(tmp_path / "runs" / "nightly.zarr")
    assert (nightly.status, nightly.done) == ("complete", 2)


ON_DASK = """
from roundweave.flows import train_flow

if __name__ == "__main__":
    train_flow({"model": "logistic", "workers": 1, "rounds": 1, "name": "logged"})
"""


@pytest.mark.slow
def test_what_dask_logs_stays_off_the_screen_while_all_is_well(environment, tmp_path: Path) -> None:
    (tmp_path / "once.py").write_text(ON_DASK)
    line, logging = [sys.executable, tmp_path / "once.py"], environment | {"PREFECT_LOGGING_LEVEL": "INFO"}
    said = subprocess.run(line, env=logging, cwd=tmp_path, capture_output=True, text=True, check=True).stderr
    assert "round 1/1" in said
    assert "distributed" not in said


CONFIG = """
data = "digits"
executor = "inline"
partitions = 2
rounds = 2
algorithm = {name = "fed_avg", local_steps = 2}
"""


@pytest.mark.slow
def test_the_workers_of_a_pool_train_what_is_deployed_on_its_schedule(server, environment, tmp_path: Path) -> None:
    (tmp_path / "often.toml").write_text(CONFIG)
    log = tmp_path / "worker.log"
    with client_of(server) as client:
        client.create_work_pool(WorkPoolCreate(name="machines", type="process"))
    line = command_line("deploy", "often.toml", "--work-pool", "machines", "--interval", "5")
    said = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("deployed often to machines; its page: http://127.0.0.1:")
    with ended([BIN / "prefect", "worker", "start", "--pool", "machines"], environment, log):
        until(lambda: [rounds_done(run) for run in (tmp_path / "runs").glob("*.zarr")].count(2) >= 2, log)

    config = TrainConfig(**read_toml(tmp_path / "often.toml"))
    says = "Prefect has no work pool 'absent'; `prefect work-pool create absent --type process` makes one"
    with client_of(server):
        for name in ("often", "never"):  # a deployment that is there, and one that is not
            with pytest.raises(UsageError, match=f"^{re.escape(says)}$"):
                deploy(config, name, "absent", None, None)


NIGHTS = [
    # Europe has no 02:30 on 28 March and two on 31 October; Cuba no 00:30 on 14 March and two on 7 November.
    ("Europe/Berlin", "30 2 * * *", ["27T01:30", "28T01:30", "29T00:30"], 2027, 3),
    ("Europe/Berlin", "30 2 * * *", ["30T00:30", "31T00:30"], 2027, 10),
    ("America/Havana", "30 0 * * *", ["13T05:30", "14T05:30", "15T04:30"], 2027, 3),
    ("America/Havana", "30 0 * * *", ["06T04:30", "07T04:30", "08T05:30"], 2027, 11),
]
"""By hand, in UTC: when a schedule begins a run."""


def test_schedules_and_dates_go_by_one_clock_when_summer_begins_and_ends(
    server, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """Each night has one run, and a name of its own; no date is that of this machine's clock, or of UTC."""
    (tmp_path / "dated.toml").write_text(f'{CONFIG}name = "night-{{date}}"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", server.api)
    with client_of(server) as client:
        client.create_work_pool(WorkPoolCreate(name="clocks", type="process"))
        for zone, cron, *_ in dict.fromkeys((zone, cron) for zone, cron, *_ in NIGHTS):
            line = ["deploy", "dated.toml", "--work-pool", "clocks", "--cron", cron, "--timezone", zone]
            code, out, _ = command(capsys, *line, "--name", zone.replace("/", "-"))
            assert (code, f"--cron and {{date}} go by the clock of {zone}, where it is 2" in out) == (0, True)
    deployed = {found["name"].replace("-", "/"): found for found in server.asked("deployments")}
    for zone, _, instants, year, month in NIGHTS:
        (stored,) = deployed[zone]["schedules"]
        due = [datetime.fromisoformat(f"{year}-{month:02}-{instant}Z") for instant in instants]
        schedule = CronSchedule(**stored["schedule"])
        planned = asyncio.run(schedule.get_dates(len(due), due[0]))
        assert [each.timestamp() for each in planned] == [each.timestamp() for each in due]
        config, names = TrainConfig(**deployed[zone]["parameters"]["config"]), []
        for each in due:
            monkeypatch.setattr(time, "time", each.timestamp)
            names.append(scheduled(config)[0].name)
        first = date.fromisoformat(f"{names[0]}".removeprefix("night-"))
        assert first.day == int(instants[0][:2])
        assert names == [f"night-{first + timedelta(days):%Y%m%d}" for days in range(len(due))]


def test_schedules_go_by_the_clock_of_this_machine_unless_another_is_named(
    server, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys
) -> None:
    """In Tokyo the 10th begins at 15:00 UTC of the 9th; so it does where a worker has the time of UTC."""
    (tmp_path / "tokyo.toml").write_text(f'{CONFIG}name = "night-{{date}}"')
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PREFECT_API_URL", server.api)
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    with client_of(server) as client:
        client.create_work_pool(WorkPoolCreate(name="tokyo", type="process"))
        assert command(capsys, "deploy", "tokyo.toml", "--work-pool", "tokyo", "--cron", "0 2 * * *")[0] == 0
    (deployment,) = [found for found in server.asked("deployments") if found["name"] == "tokyo"]
    assert deployment["schedules"][0]["schedule"]["timezone"] == "Asia/Tokyo"
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(time, "time", datetime.fromisoformat("2027-05-09T15:30Z").timestamp)
    assert scheduled(TrainConfig(**deployment["parameters"]["config"]))[0].name == "night-20270510"


ANYWHERE = ["deploy", "often.toml", "--work-pool", "any"]


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (["serve", "absent.toml"], "absent.npz"),
        (["serve", "own.toml"], "absent.py"),
        (["serve", "often.toml", "--cron", "nightly"], "'nightly' is no schedule; give one such as '0 2 * * *'"),
        ([*ANYWHERE, "--cron", "nightly"], "'nightly' is no schedule"),
        ([*ANYWHERE, "--cron", ""], "'' is no schedule"),
        ([*ANYWHERE, "--interval", "inf"], "inf is no schedule"),
        ([*ANYWHERE, "--name", "a/b"], "'a/b' is no name of a deployment"),
        (["serve", "often.toml", "--name", "R&D"], "'R&D' is no name of a deployment"),
        ([*ANYWHERE, "--cron", "0 2 * * *", "--interval", "60"], "two schedules"),
        (
            [*ANYWHERE, "--timezone", "Europe/Berlni"],
            "'Europe/Berlni' is no time zone; did you mean Europe/Berlin",
        ),
        ([*ANYWHERE, "--timezone", "Europe"], "'Europe' is no time zone"),
        ([*ANYWHERE, "--timezone", "../../etc/passwd"], "is no time zone"),
        (["train", "often.toml", "--timezone", ""], "'' is no time zone"),
        (["train", "often.toml", "--timezone", "CEST"], "'CEST' is no time zone; give one such as Europe/Berlin"),
    ],
)
def test_what_could_never_be_trained_is_refused_at_once(tmp_path, monkeypatch, capsys, line, said) -> None:
    (tmp_path / "often.toml").write_text(CONFIG)
    (tmp_path / "absent.toml").write_text(CONFIG.replace("digits", "absent.npz"))
    (tmp_path / "own.toml").write_text(f'{CONFIG}model = "absent.py:Net"')
    monkeypatch.chdir(tmp_path)
    code, _, error = command(capsys, *line)
    assert (code, error.count("\n")) == (2, 1)
    assert said in error


def test_there_is_nowhere_to_deploy_to_without_a_server(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "often.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "none.toml"))
    says = "error: no Prefect server to deploy to; set PREFECT_API_URL to that of the work pool\n"
    assert command(capsys, *ANYWHERE) == (2, "", says)


@pytest.mark.slow
@pytest.mark.parametrize("end", [signal.SIGINT, signal.SIGTERM])
def test_the_command_serves_with_a_server_of_its_own_and_ends_in_order(tmp_path, end: signal.Signals) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    (tmp_path / "often.toml").write_text(CONFIG)
    line = command_line("serve", "often.toml", "--interval", "5", "--name", "often", "--metrics", "0")
    log, runs = tmp_path / "serve.log", tmp_path / "runs"
    with log.open("wb") as output:
        process = subprocess.Popen(
            line, env=own | {"PREFECT_RUNNER_POLL_FREQUENCY": "1"}, cwd=tmp_path, stdout=output, stderr=output
        )
    try:
        trained = lambda: [rounds_done(run) for run in runs.glob("*.zarr")].count(2)  # noqa: E731
        until(lambda: trained() >= 2 or process.poll() is not None, log)
        address = re.search(r"page: (http://127\.0\.0\.1:\d+)/deployments/deployment/", log.read_text())[1]
        assert "<title>Prefect" in httpx.get(address, follow_redirects=True, timeout=PATIENCE).text
        metrics = re.search(r"for Prometheus: (http://127\.0\.0\.1:\d+/metrics)", log.read_text())[1]
        counts = re.findall(
            r'roundweave_runs\{status="(complete|running)"\} (\d+)', httpx.get(metrics, timeout=PATIENCE).text
        )
        assert sum(int(count) for _, count in counts) >= 2
        family = psutil.Process(process.pid).children(recursive=True)
    finally:
        process.send_signal(end)
        code = process.wait(60)
    assert (code, log.read_text().splitlines()[-1]) == (0, "no longer served; its schedule is paused")
    assert "Traceback" not in log.read_text()
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []


def test_the_server_of_a_root_listens_to_this_machine_and_answers_this_process_alone() -> None:
    url = os.environ["PREFECT_API_URL"]  # that of the root of these tests
    port = int(url.split(":")[2].removesuffix("/api"))
    connections = [c for child in psutil.Process().children() for c in child.net_connections("inet")]
    assert {c.laddr.ip for c in connections if c.status == psutil.CONN_LISTEN and c.laddr.port == port} == {
        "127.0.0.1"
    }
    with get_client(sync_client=True) as client:
        client.read_flow_runs(limit=1)
    for auth in (None, ("roundweave", "guess")):
        assert httpx.post(f"{url}/flow_runs/filter", json={}, auth=auth, timeout=PATIENCE).status_code == 401
