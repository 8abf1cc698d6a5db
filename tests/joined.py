"""Schedulers and workers as processes of their own, whose lines a test waits for."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from roundweave.tasks.executors.clusters.certificates import AUTHORITY, CERTIFICATE, KEY
from tests.flows.prefect_server import command_line, until
from tests.patience import PATIENCE
from tests.workers import worker_processes


class Started:
    """A process that leads a group of its own and writes to a log."""

    def __init__(self, log: Path, *line: str) -> None:
        self.log = log
        with log.open("wb") as file:
            self.process = subprocess.Popen(line, stdout=file, stderr=file, start_new_session=True)

    @property
    def lines(self) -> list[str]:
        """What it has printed, without the time of day."""
        lines = self.log.read_text().splitlines()
        return [line[9:] if line[2:6:3] == "::" else line for line in lines]

    def says(self, text: str, times: int = 1) -> None:
        """Wait until so many of its lines have a text."""
        until(lambda: sum(text in line for line in self.lines) >= times, self.log)

    @property
    def workers(self) -> list[psutil.Process]:
        """The worker processes that it has started."""
        return worker_processes(psutil.Process(self.process.pid))

    def ended(self, number: int = signal.SIGTERM, group: bool = False) -> int:
        """Its exit code after a signal to it, or to its whole group, as of Ctrl-C."""
        (os.killpg if group else os.kill)(self.process.pid, number)
        return self.process.wait(timeout=PATIENCE)


Start = Callable[..., Started]
"""Starts a command line; see `processes`."""


@contextmanager
def processes(folder: Path) -> Iterator[Start]:
    """A function that starts command lines, with logs in a folder; what still runs is killed afterwards."""
    started: list[Started] = []

    def start(*line: str) -> Started:
        started.append(Started(folder / f"{len(started)}.log", *line))
        return started[-1]

    try:
        yield start
    finally:
        for each in reversed(started):
            if each.process.poll() is None:
                each.ended(signal.SIGKILL, group=True)


def scheduler(start: Start, port: int, certificates: Path | None = None, *options: str) -> Started:
    """Start a Dask scheduler on this machine, which talks by TLS with a partner's folder, and wait for it."""
    line = ["--host", "127.0.0.1", "--port", str(port), "--no-dashboard", *options]
    if certificates is not None:
        line += ["--protocol", "tls", "--tls-ca-file", str(certificates / AUTHORITY)]
        line += ["--tls-cert", str(certificates / CERTIFICATE), "--tls-key", str(certificates / KEY)]
    started = start(sys.executable, "-m", "dask", "scheduler", *line)
    started.says("Scheduler at:")
    return started


def worker(start: Start, address: str, *options: str) -> Started:
    """Start `roundweave worker`."""
    return start(*command_line("worker", address, *options))
