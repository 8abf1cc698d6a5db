"""A real Prefect server as a process that tests kill, stop and start again, and commands that report to it."""

from __future__ import annotations

import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from typing import Any

import psutil
import pytest

from roundweave.flows.serving.api_server import template
from tests.patience import PATIENCE


class PrefectServer:
    """``prefect server start`` on a port of its own, its files in a folder."""

    def __init__(self, home: Path) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listener:
            self.port = listener.getsockname()[1]
        self.api = f"http://127.0.0.1:{self.port}/api"
        self.home = home
        home.mkdir(parents=True, exist_ok=True)
        with suppress(FileNotFoundError):  # of the template, without which it makes a database, which takes 4 s
            shutil.copy(template(), home / "prefect.db")
        without = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT")}
        places = {"PREFECT_HOME": str(home), "PREFECT_PROFILES_PATH": str(home / "profiles.toml")}
        self.environment = without | places | {"PREFECT_SERVER_ANALYTICS_ENABLED": "false"}
        self.environment |= {"PREFECT_SERVER_UI_API_URL": self.api}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> PrefectServer:
        """Start it, and wait until it answers."""
        line = [Path(sys.executable).parent / "prefect", "server", "start", "--port", str(self.port), "--no-ui"]
        with (self.home / "server.log").open("ab") as log:
            self.process = subprocess.Popen(
                line, env=self.environment, stdout=log, stderr=log, start_new_session=True
            )
        until(self.answers, self.home / "server.log")
        return self

    def answers(self) -> bool:
        """Whether it does, within a second."""
        try:
            with urllib.request.urlopen(f"{self.api}/health", timeout=1):
                return True
        except OSError:
            return False

    def stop(self) -> None:
        """Have it hang: it takes connections and answers none."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Have it go on where it was stopped."""
        self._signal(signal.SIGCONT)

    def fill_disk(self) -> None:
        """Let it write no more to any file."""
        self._limit_files(0)

    def mend(self) -> None:
        """Have it work again, whatever was done to it."""
        if self.process is None:
            self.start()
        else:
            self._limit_files(psutil.RLIM_INFINITY)
            self.resume()

    def kill(self) -> None:
        """End it at once."""
        if self.process is not None:
            self._signal(signal.SIGKILL)
            self.process.wait()
            self.process = None

    def _limit_files(self, size: int) -> None:
        for process in self._processes():
            process.rlimit(psutil.RLIMIT_FSIZE, (size, psutil.RLIM_INFINITY))

    def _signal(self, number: int) -> None:
        for process in self._processes():
            process.send_signal(number)

    def _processes(self) -> list[psutil.Process]:
        assert self.process is not None
        server = psutil.Process(self.process.pid)
        return [server, *server.children(recursive=True)]

    def post(self, path: str, **body: Any) -> Any:
        """What it answers to a request."""
        content = json.dumps(body).encode()
        request = urllib.request.Request(f"{self.api}/{path}", content, {"Content-Type": "application/json"})
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)

    def asked(self, what: str, **body: Any) -> Any:
        """What it knows of `flow_runs`, `task_runs`, `artifacts`, `logs`, `events` or `deployments`."""
        return self.post(f"{what}/filter", **body)

    def flow_runs(self, name: str) -> list[dict[str, Any]]:
        """The flow runs of a name, in the order in which they were made."""
        return sorted(
            self.asked("flow_runs", flow_runs={"name": {"any_": [name]}}), key=lambda run: run["created"]
        )

    def logged(self, name: str) -> list[str]:
        """What was logged of the flow runs of a name."""
        these = {"flow_run_id": {"any_": [run["id"] for run in self.flow_runs(name)]}}
        return [log["message"] for log in self.asked("logs", logs=these)]

    def rounds(self, name: str) -> list[list[int]]:
        """The rounds of each event of a run's committed rounds."""
        event, resource = {"name": ["roundweave.round.committed"]}, {"id": [f"roundweave.run.{name}"]}
        found = self.asked("events", filter={"event": event, "resource": resource}, limit=50)["events"]
        return sorted([row["round"] for row in each["payload"]["rounds"]] for each in found)

    def deployed(self, name: str, log: Path | None = None) -> dict[str, Any]:
        """The deployment of a name, once it is there."""
        these = {"name": {"any_": [name]}}
        until(lambda: self.asked("deployments", deployments=these), log)
        (found,) = self.asked("deployments", deployments=these)
        return dict(found)

    def run(self, name: str, log: Path, state: str = "Completed") -> dict[str, Any]:
        """Ask for a run of a deployment; gives the flow run, once it has a state of that name."""
        asked = self.post(f"deployments/{self.deployed(name, log)['id']}/create_flow_run")["id"]
        these = {"id": {"any_": [asked]}, "state": {"name": {"any_": [state]}}}
        until(lambda: self.asked("flow_runs", flow_runs=these), log)
        (found,) = self.asked("flow_runs", flow_runs=these)
        return dict(found)

    @contextmanager
    def reported_to(self) -> Iterator[None]:
        """Flows of this process, and of those that it starts, report to it while the context is open."""
        from prefect.context import refresh_global_settings_context
        from prefect.logging.handlers import APILogHandler
        from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings

        with pytest.MonkeyPatch.context() as patch:
            patch.setenv("PREFECT_API_URL", self.api)
            patch.setenv("PREFECT_CLIENT_SERVER_VERSION_CHECK_ENABLED", "false")
            refresh_global_settings_context()
            with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):  # it takes a second to end
                yield
                APILogHandler().flush()
        refresh_global_settings_context()


@contextmanager
def ended(
    line: list[object], environment: dict[str, str], log: Path, cwd: Path | None = None
) -> Iterator[subprocess.Popen[bytes]]:
    """A process with its log, ended with the block."""
    options: dict[str, Any] = {"env": environment, "cwd": cwd, "start_new_session": True}
    with log.open("wb") as output:
        process = subprocess.Popen([str(word) for word in line], stdout=output, stderr=output, **options)
    try:
        yield process
    finally:
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@contextmanager
def listener(status: int = 200) -> Iterator[tuple[str, list[Any]]]:
    """The address of an HTTP server that answers each request so, and what was posted to it."""
    posted: list[Any] = []

    class Takes(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            posted.append(json.loads(self.rfile.read(int(self.headers["Content-Length"] or 0)) or b"null"))
            self.send_error(status) if status >= 400 else self.send_response(status)
            self.end_headers()

        do_GET = do_POST  # noqa: N815

        def log_message(self, *_: object) -> None:
            """Print nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Takes) as server:
        Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}", posted
        server.shutdown()


def until(reached: Callable[[], bool], log: Path | None = None) -> None:
    """Wait until something is so; fails after two minutes, saying what the log says."""
    deadline = time.monotonic() + PATIENCE
    while not reached():
        assert time.monotonic() < deadline, log.read_text() if log else "it never came"
        time.sleep(0.1)


def command_line(*arguments: str) -> list[str]:
    """The words that start the `roundweave` command in a process of its own."""
    return [sys.executable, "-m", "roundweave.flows.command.app", *arguments]


def rounds_done(store: Path) -> int:
    """How many rounds are committed."""
    return len([path for path in (store / "commits").glob("*.json") if path.stem.isdigit()]) - 1
