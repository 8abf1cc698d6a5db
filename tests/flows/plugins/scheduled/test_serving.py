"""Served flows: on a schedule, or run by hand, from a real Prefect server."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.error import HTTPError

import httpx
import psutil
import pytest
from prefect.server.schemas.schedules import CronSchedule

from roundweave import TrainConfig, UsageError, open_run
from roundweave.flows.config.files import read_toml
from roundweave.flows.planning.naming import configure
from roundweave.flows.plugins.scheduled.metrics import answering
from roundweave.flows.plugins.scheduled.serving import deploy
from tests.flows.command.in_process import refused
from tests.flows.command.in_process import run as command
from tests.flows.plugins.scheduled.test_metrics import read
from tests.flows.prefect_server import command_line, ended, rounds_done, until
from tests.patience import PATIENCE
from tests.training import trained

pytestmark = pytest.mark.prefect

BIN = Path(sys.executable).parent

SERVE = """
from prefect import serve
from roundweave.flows import merge_flow, train_flow

if __name__ == "__main__":
    small = {"data": "digits", "executor": "inline", "algorithm": "fed_avg", "local_steps": 2, "rounds": 2}
    nightly = {"config": {**small, "name": "nightly"}}
    networks = {"networks": ["a@1", "b@1"], "executor": "inline", "points": 3}
    serve(
        train_flow.to_deployment("nightly", cron="0 2 * * *", parameters=nightly),
        merge_flow.to_deployment("merged", parameters={"config": networks}),
    )
"""


@pytest.mark.thorough
def test_served_flows_run_when_they_are_asked_to_and_run_again(server, environment, tmp_path) -> None:
    """As a process of its own: a flow reaches the one that trains by its pickle, its values by the server."""
    for name in "ab":
        trained(tmp_path / "runs", name=name, partitions=1, local_steps=2, rounds=1)
    (tmp_path / "serve.py").write_text(SERVE)
    log = tmp_path / "serve.log"
    with ended([sys.executable, tmp_path / "serve.py"], environment, log):
        for name in ("nightly", "nightly", "merged"):
            server.run(name, log)
    nightly = open_run("nightly")
    assert (nightly.status, nightly.done) == ("complete", 2)
    (merged,) = (tmp_path / "runs").glob("merge-*.zarr")
    assert open_run(merged).status == "complete"


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
    server.post("work_pools/", name="machines", type="process")
    line = command_line("deploy", "often.toml", "--work-pool", "machines", "--interval", "5")
    said = subprocess.run(line, env=environment, cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    assert said.startswith("deployed often to machines; its page: http://127.0.0.1:")
    with ended([BIN / "prefect", "worker", "start", "--pool", "machines"], environment, log):
        until(lambda: [rounds_done(run) for run in (tmp_path / "runs").glob("*.zarr")].count(2) >= 2, log)

    config = TrainConfig(**read_toml(tmp_path / "often.toml"))
    says = "Prefect has no work pool 'absent'; `prefect work-pool create absent --type process` makes one"
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


@pytest.fixture
def deployed(server, tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> Callable[..., tuple[Any, TrainConfig]]:
    """Deploys; gives the schedule, and the configuration of a name with a date, that Prefect has then."""
    (tmp_path / "dated.toml").write_text(f'{CONFIG}name = "night-{{date}}"')
    monkeypatch.chdir(tmp_path)
    with suppress(HTTPError):  # it is there
        server.post("work_pools/", name="clocks", type="process")

    def deploy(name: str, cron: str, *more: str) -> tuple[Any, TrainConfig]:
        line = ["deploy", "dated.toml", "--work-pool", "clocks", "--cron", cron, "--name", name, *more]
        code, out, _ = command(capsys, *line)
        found = server.deployed(name)
        (stored,), config = found["schedules"], TrainConfig(**found["parameters"]["config"])
        said = f"--cron and {{date}} use the time zone {config.timezone}, where it is 2"
        assert (code, said in out, stored["schedule"]["timezone"]) == (0, True, config.timezone)
        return stored["schedule"], config

    return deploy


@pytest.mark.thorough
def test_schedules_and_dates_go_by_one_clock_when_summer_begins_and_ends(deployed, monkeypatch) -> None:
    """Each night has one run, and a name of its own; no date is that of this machine's clock, or of UTC."""
    zones = {night[:2] for night in NIGHTS}
    clocks = {zone: deployed(zone.replace("/", "-"), cron, "--timezone", zone) for zone, cron in zones}
    for zone, _, instants, year, month in NIGHTS:
        schedule, config = clocks[zone]
        due = [datetime.fromisoformat(f"{year}-{month:02}-{instant}Z") for instant in instants]
        planned = asyncio.run(CronSchedule(**schedule).get_dates(len(due), due[0]))
        assert [each.timestamp() for each in planned] == [each.timestamp() for each in due]
        names = []
        for each in due:
            monkeypatch.setattr(time, "time", each.timestamp)
            names.append(configure(config).name)
        first = date.fromisoformat(f"{names[0]}".removeprefix("night-"))
        assert first.day == int(instants[0][:2])
        assert names == [f"night-{first + timedelta(days):%Y%m%d}" for days in range(len(due))]


@pytest.mark.thorough
def test_schedules_go_by_the_clock_of_this_machine_unless_another_is_named(deployed, monkeypatch) -> None:
    """In Tokyo the 10th begins at 15:00 UTC of the 9th; so it does where a worker has the time of UTC."""
    monkeypatch.setenv("TZ", ":Asia/Tokyo")
    _, config = deployed("tokyo", "0 2 * * *")
    monkeypatch.setenv("TZ", "UTC")
    monkeypatch.setattr(time, "time", datetime.fromisoformat("2027-05-09T15:30Z").timestamp)
    assert (config.timezone, configure(config).name) == ("Asia/Tokyo", "night-20270510")


ANYWHERE = ["deploy", "often.toml", "--work-pool", "any"]


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (["serve", "absent.toml"], "absent.npz"),
        (["serve", "own.toml"], "absent.py"),
        (["serve", "often.toml", "--cron", "nightly"], "'nightly' is no schedule; give one such as '0 2 * * *'"),
        ([*ANYWHERE, "--cron", "nightly"], "'nightly' is no schedule"),
        ([*ANYWHERE, "--cron", ""], "'' is no schedule"),
        ([*ANYWHERE, "--interval", "inf"], "inf is no schedule"),
        ([*ANYWHERE, "--name", "a/b"], "'a/b' is no name of a deployment"),
        (["serve", "often.toml", "--name", "R&D"], "'R&D' is no name of a deployment"),
        ([*ANYWHERE, "--cron", "0 2 * * *", "--interval", "60"], "both schedules"),
        (
            [*ANYWHERE, "--timezone", "Europe/Berlni"],
            "'Europe/Berlni' is no time zone; did you mean Europe/Berlin",
        ),
    ],
)
def test_what_could_never_be_trained_is_refused_at_once(tmp_path, monkeypatch, capsys, line, says) -> None:
    (tmp_path / "often.toml").write_text(CONFIG)
    (tmp_path / "absent.toml").write_text(CONFIG.replace("digits", "absent.npz"))
    (tmp_path / "own.toml").write_text(f'{CONFIG}model = "absent.py:Net"')
    monkeypatch.chdir(tmp_path)
    code, said = refused(capsys, *line)
    assert (code, says in said) == (2, True)


def test_there_is_nowhere_to_deploy_to_without_a_server(tmp_path, monkeypatch: pytest.MonkeyPatch, capsys) -> None:
    (tmp_path / "often.toml").write_text(CONFIG)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("PREFECT_API_URL")
    monkeypatch.setenv("PREFECT_PROFILES_PATH", str(tmp_path / "none.toml"))
    says = "no Prefect server to deploy to; set PREFECT_API_URL to that of the work pool"
    assert refused(capsys, *ANYWHERE) == (2, says)


def test_metrics_name_nights_that_failed_before_a_run_began_or_have_not_begun(server, tmp_path: Path) -> None:
    flow = server.post("flows/", name="roundweave-train")["id"]
    deployment = server.post("deployments/", name="watched", flow_id=flow)["id"]
    ends = {"01": "FAILED", "02": "CRASHED", "03": "FAILED", "04": "COMPLETED", "05": "SCHEDULED"}
    for day, end in ends.items():
        due = {"type": "SCHEDULED", "state_details": {"scheduled_time": f"2021-02-{day}T02:00:00Z"}}
        made = server.post(f"deployments/{deployment}/create_flow_run", state=due)["id"]
        state = due | {"type": end, "name": "Late" if end == "SCHEDULED" else end.title()}
        server.post(f"flow_runs/{made}/set_state", state=state, force=True)
    trained(tmp_path / "runs", name="night-20210203", partitions=1, local_steps=2, rounds=1)  # it was tried again
    config = TrainConfig(name="night-{date}", timezone="UTC", root=tmp_path / "runs")
    with answering(config, "0", "watched") as address:
        told = read(address)
        server.kill()
        without = read(address)
    server.mend()
    due = {each[1:]: datetime.fromtimestamp(at, UTC) for each, at in told.items() if each[0] == "roundweave_run"}
    assert due.pop(("night-20210203", "complete"))
    wanted = {"01": "failed", "02": "crashed", "05": "late"}
    assert due == {
        (f"night-202102{n}", end): datetime(2021, 2, int(n), 2, tzinfo=UTC) for n, end in wanted.items()
    }
    counts = {each[1]: count for each, count in told.items() if each[0] == "roundweave_runs"}
    assert counts == dict.fromkeys([*wanted.values(), "complete"], 1)
    answers = [each["roundweave_prefect_answers",] for each in (told, without)]
    assert (answers, without["roundweave_runs", "complete"]) == ([1, 0], 1)


@pytest.mark.thorough
def test_the_command_serves_with_a_server_of_its_own_and_ends_in_order(tmp_path) -> None:
    own = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_")}
    (tmp_path / "often.toml").write_text(CONFIG)
    line = command_line("serve", "often.toml", "--interval", "5", "--name", "often", "--metrics", "0")
    log, runs = tmp_path / "serve.log", tmp_path / "runs"
    with ended(line, own | {"PREFECT_RUNNER_POLL_FREQUENCY": "1"}, log, cwd=tmp_path) as process:
        trained = lambda: [rounds_done(run) for run in runs.glob("*.zarr")].count(2)  # noqa: E731
        until(lambda: trained() >= 2 or process.poll() is not None, log)
        address = re.search(r"page: (http://127\.0\.0\.1:\d+)/deployments/deployment/", log.read_text())[1]
        assert "<title>Prefect" in httpx.get(address, follow_redirects=True, timeout=PATIENCE).text
        metrics = re.search(r"for Prometheus: (http://127\.0\.0\.1:\d+/metrics)", log.read_text())[1]
        told = httpx.get(metrics, timeout=PATIENCE).text
        counts = re.findall(r'roundweave_runs\{status="(complete|running)"\} (\d+)', told)
        assert sum(int(count) for _, count in counts) >= 2
        family = psutil.Process(process.pid).children(recursive=True)
        process.send_signal(signal.SIGINT)
        code = process.wait(60)
    assert (code, log.read_text().splitlines()[-1]) == (0, "no longer serving; the schedule is paused")
    assert "Traceback" not in log.read_text()
    assert psutil.wait_procs(family, timeout=PATIENCE)[1] == []
