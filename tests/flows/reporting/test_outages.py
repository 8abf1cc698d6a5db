"""What becomes of a training when Prefect's server, one of its own, dies, hangs or has a full disk: nothing."""

from __future__ import annotations

import secrets
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import nullcontext
from itertools import chain
from pathlib import Path
from unittest.mock import Mock

import httpx
import pytest
from prefect import flow
from prefect.settings import PREFECT_API_URL, temporary_settings

from roundweave.flows.reporting.reporter import Reporter, run_flow
from roundweave.flows.stored import open_run
from tests.flows.nights import trained
from tests.flows.prefect_server import PrefectServer, command_line, listener, rounds_done, until

ROUNDS = 24
SMALL = ["--executor", "inline", "--partitions", "2", "--window", "1", "--local-steps", "300"]


@pytest.fixture(scope="module")
def prefect(tmp_path_factory: pytest.TempPathFactory) -> Iterator[PrefectServer]:
    """One that tests kill, stop, and let write no more."""
    running = PrefectServer(tmp_path_factory.mktemp("prefect"))
    yield running
    running.kill()


class Training:
    """`roundweave train` in a process of its own, its rounds long enough to do something between them."""

    def __init__(self, folder: Path, environment: dict[str, str], api: str, rounds: int = ROUNDS) -> None:
        self.name = f"run-{secrets.token_hex(4)}"
        self.store = folder / "runs" / f"{self.name}.zarr"
        self.output, self.errors = folder / "output", folder / "errors"
        line = command_line("train", *SMALL, "--rounds", str(rounds), "--name", self.name)
        with self.output.open("wb") as output, self.errors.open("wb") as errors:
            self.process = subprocess.Popen(
                line, cwd=folder, env=environment | {"PREFECT_API_URL": api}, stdout=output, stderr=errors
            )

    def reach(self, round: int) -> None:
        """Wait for a round."""
        until(lambda: rounds_done(self.store) >= round or self.process.poll() is not None, self.errors)

    def reach_reported(self, round: int, server: PrefectServer) -> None:
        """Wait for a round, and until Prefect has its event: it is told of rounds when its flow run has begun."""
        self.reach(round)
        until(lambda: round in chain(*server.rounds(self.name)) or self.process.poll() is not None, self.errors)

    def end(self) -> tuple[int, list[str]]:
        """The exit code, and the lines on standard error that are not of rounds."""
        code = self.process.wait(240)
        lines = self.errors.read_text().splitlines()
        return code, [line for line in lines if not line.startswith("round ")]


BREAKS = {"killed": PrefectServer.kill, "stopped": PrefectServer.stop, "disk full": PrefectServer.fill_disk}


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped"])
def test_what_was_not_reported_is_sent_when_the_server_comes_back(server, tmp_path, how: str) -> None:
    rounds = 2 * ROUNDS  # a server takes seconds to start
    training = Training(tmp_path, server.environment, server.api, rounds)
    training.reach_reported(3, server)
    BREAKS[how](server)
    training.reach(6)
    server.resume() if how == "stopped" else server.start()
    assert training.end() == (0, [])
    (flow,) = server.flow_runs(training.name)
    assert flow["state_type"] == "COMPLETED"
    this = {"flow_run_id": {"any_": [flow["id"]]}}
    assert f"{training.name}-history" in {artifact["key"] for artifact in server.asked("artifacts")}
    until(lambda: sorted(chain(*server.rounds(training.name))) == [*range(1, rounds + 1)])
    until(lambda: len(server.asked("task_runs", task_runs=this)) == rounds)
    logged = {message.split(":")[0] for message in server.logged(training.name)}
    assert {f"round {round}/{rounds}" for round in range(1, rounds + 1)} <= logged


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
@pytest.mark.parametrize("begun", [False, True])
def test_interrupting_ends_the_command_though_the_server_hangs(server, tmp_path, number: int, begun: bool) -> None:
    """Also where its flow run has not begun."""
    training = Training(tmp_path, server.environment, server.api, rounds=1000)
    training.reach_reported(3, server) if begun else training.reach(1)
    server.stop()
    training.process.send_signal(number)
    code, said = training.end()
    assert code == 1
    assert said[-1].startswith("error: interrupted; committed rounds are kept")
    assert len(said) <= 2
    assert open_run(training.store).status == "interrupted"


@pytest.mark.slow
@pytest.mark.parametrize("how", ["killed", "stopped", "disk full"])
def test_training_finishes_whatever_becomes_of_the_server_and_says_so_once(server, tmp_path, how: str) -> None:
    training = Training(tmp_path, server.environment, server.api)
    training.reach_reported(3, server)
    BREAKS[how](server)
    code, said = training.end()
    run = open_run(training.store)
    assert (code, run.status, run.done) == (0, "complete", ROUNDS), said
    (line,) = said
    assert server.api in line
    assert "reports" in line
    assert f"{training.name}: complete" in training.output.read_text()


def test_a_server_that_takes_reports_slowly_is_waited_for_only_so_long(monkeypatch) -> None:
    monkeypatch.setattr("roundweave.flows.reporting.reporter.get_client", lambda **_: nullcontext())
    monkeypatch.setattr("roundweave.flows.reporting.reporter.SECONDS", 1.0)
    reporter = Reporter()
    for _ in range(100):  # each of a kind of its own, so that none is sent together with the next
        reporter.put(lambda client, contents: time.sleep(0.05))
    reporter.flush()
    assert 0 < reporter.close() < 100


def test_a_report_that_fails_in_any_way_is_lost_alone(monkeypatch) -> None:
    """Such as one whose answer Prefect's client cannot read, as the server has another version."""
    monkeypatch.setattr("roundweave.flows.reporting.reporter.get_client", lambda **_: nullcontext())
    sent: list[str] = []

    def fail(client: object, contents: list[str]) -> None:
        raise KeyError("an answer without a name")

    reporter = Reporter()
    reporter.put(fail, "one")
    reporter.put(lambda client, contents: sent.extend(contents), "another")
    reporter.flush()
    assert (sent, reporter.close()) == (["another"], 1)


def test_a_report_that_did_not_arrive_is_sent_again(monkeypatch) -> None:
    monkeypatch.setattr("roundweave.flows.reporting.reporter.get_client", lambda **_: nullcontext())
    monkeypatch.setattr("roundweave.flows.reporting.reporter.PAUSE_SECONDS", 0.01)
    send, reporter = Mock(side_effect=[httpx.ConnectError("no server"), None]), Reporter()
    reporter.put(send, "one")
    reporter.flush()
    assert (send.call_count, reporter.close()) == (2, 0)


def test_a_server_that_never_was_is_said_in_one_line(capsys) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:1/api"}):
        assert trained(name="alone", rounds=1).status == "complete"
    (line,) = capsys.readouterr().err.splitlines()
    assert "http://127.0.0.1:1/api" in line
    assert "PREFECT_API_URL" in line


def test_the_line_has_what_a_server_answered_that_does_not_take_the_run(capsys) -> None:
    with listener(503) as (address, _), temporary_settings({PREFECT_API_URL: f"{address}/api"}):
        assert run_flow(flow(name="busy")(lambda config: None), 1, lambda: 2) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert "does not accept the run (" in line
    assert "503" in line
    assert line.endswith("so nothing is reported; mend it, or set PREFECT_API_URL to another")
