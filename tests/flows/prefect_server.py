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
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil

from roundweave.flows.serving.api_server import template
from tests.patience import PATIENCE


class PrefectServer:
    """``prefect server start`` on a port of its own, its files in a folder; with `pages` for people, too."""

    def __init__(self, home: Path, pages: bool = False) -> None:
        self.pages = pages
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
        line = [Path(sys.executable).parent / "prefect", "server", "start", "--port", str(self.port)]
        line += [] if self.pages else ["--no-ui"]
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

    def asked(self, what: str, **body: Any) -> Any:
        """What it knows of `flow_runs`, `task_runs`, `artifacts`, `logs` or `events`."""
        content = json.dumps(body).encode()
        request = urllib.request.Request(
            f"{self.api}/{what}/filter", content, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
            return json.load(answer)


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
