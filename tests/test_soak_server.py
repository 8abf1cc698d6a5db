"""Asynchronous runs as users start them: killed twice, their workers five times, and they replay."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from roundweave.flows.stored import open_run
from tests.flows.prefect_server import PrefectServer, command_line, rounds_done, until
from tests.workers import worker_processes

pytestmark = pytest.mark.slow

ROUNDS = 240
SMALL = ["--model", "mlp", "--partitions", "5", "--batch-size", "16", "--rounds", str(ROUNDS)]
NAME = "killed"

DEEDS = {20: "worker", 50: "command", 80: "worker", 110: "worker", 140: "command", 170: "worker", 200: "worker"}
"""What is killed once so many rounds are committed."""

RUNS = {
    "async_sgd": ["--algorithm", "async_sgd", "--momentum", "0.5"],
    "async_sgd-stale": ["--algorithm", "async_sgd", "--max-staleness", "3"],
    "downpour": ["--algorithm", "downpour", "--fetch-every", "4", "--push-every", "2"],
    "easgd": ["--algorithm", "easgd", "--local-steps", "2"],
    "fed_buff": ["--algorithm", "fed_buff", "--local-steps", "2", "--buffer", "2"],
    "fed_buff-cohort": ["--algorithm", "fed_buff", "--local-steps", "2", "--buffer", "2", "--cohort", "3"],
    "easgd-cohort": ["--algorithm", "easgd", "--local-steps", "2", "--cohort", "0.4"],
}


class Commands:
    """`roundweave` in processes of its own, which lead a group each, with runs in a folder."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.log, self.running = folder, folder / "log", list[subprocess.Popen[bytes]]()
        self.environment = PrefectServer(folder / "prefect").environment | {
            "PREFECT_API_URL": "http://127.0.0.1:1/api",
            "ROUNDWEAVE_ROOT": str(folder / "runs"),
        }

    def start(self, *words: str) -> subprocess.Popen[bytes]:
        """Begin one."""
        with self.log.open("ab") as log:
            line = command_line(*words)
            options: dict[str, Any] = {"cwd": self.folder, "env": self.environment, "start_new_session": True}
            self.running.append(subprocess.Popen(line, stdout=log, stderr=log, **options))
        return self.running[-1]

    def done(self, *words: str) -> None:
        """Begin one, and wait for its good end."""
        assert self.start(*words).wait(300) == 0, self.log.read_text()


@pytest.fixture(scope="module")
def workers(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The file of a Dask scheduler, and the process that starts its two workers again when they die."""
    folder = tmp_path_factory.mktemp("dask")
    place = ["--scheduler-file", str(folder / "scheduler.json"), "--no-dashboard"]
    commands = [["scheduler", "--port", "0", "--host", "127.0.0.1"]]
    commands += [["worker", "--nworkers", "2", "--nthreads", "1"]]
    started = []
    with (folder / "log").open("ab") as log:
        for command in commands:
            line = [sys.executable, "-m", "dask", *command, *place]
            started.append(subprocess.Popen(line, cwd=folder, stdout=log, stderr=log, start_new_session=True))
            until((folder / "scheduler.json").exists, folder / "log")
    yield place[1], started[1]
    for process in reversed(started):
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers_of(process: subprocess.Popen[bytes]) -> list[psutil.Process]:
    """The worker processes that a process has started, or that those have."""
    try:
        return worker_processes(psutil.Process(process.pid))
    except psutil.NoSuchProcess:
        return []


def kill_one(process: subprocess.Popen[bytes]) -> None:
    """SIGKILL one of its workers, once it has any."""
    until(lambda: bool(workers_of(process)))
    workers_of(process)[0].send_signal(signal.SIGKILL)


@pytest.fixture
def commands(tmp_path: Path) -> Iterator[Commands]:
    """None outlives the test."""
    commands = Commands(tmp_path)
    yield commands
    for process in commands.running:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


@pytest.fixture
def killed(tmp_path: Path, workers: Any, commands: Commands) -> Callable[[list[str], bool], None]:
    """Train with these options on the scheduler's workers or on its own, through all deeds, to the end."""

    def train(options: list[str], own_workers: bool) -> None:
        store = tmp_path / "runs" / f"{NAME}.zarr"
        file, there = workers
        where = [] if own_workers else ["--scheduler", file]
        process = commands.start("train", *SMALL, *options, *where, "--name", NAME)
        for round, what in DEEDS.items():
            until(lambda round=round: rounds_done(store) >= round, commands.log)
            if what == "worker":
                kill_one(process if own_workers else there)
                continue
            os.killpg(process.pid, signal.SIGKILL)
            assert process.wait() == -signal.SIGKILL
            process = commands.start("resume", NAME, *where)
        assert process.wait(300) == 0, commands.log.read_text()

    return train


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("name", "own_workers"), [*((name, False) for name in RUNS), ("async_sgd", True), ("downpour-4", True)]
)
def test_a_server_killed_again_and_again_replays_to_the_bit(
    killed, commands, workers, tmp_path, name, own_workers
) -> None:
    killed(RUNS[name], own_workers)
    run = open_run(NAME, tmp_path / "runs")
    commits = [run.round(round).commit for round in range(run.done + 1)]
    assert (run.status, run.done, len({commit.token for commit in commits[1:]})) == ("complete", ROUNDS, 3)
    commands.done("verify", NAME)
    commands.done("replay", NAME, "--all", "--executor", "inline")
    commands.done("replay", NAME, "--all", "--scheduler", workers[0])
    order = ["--executor", "inline", "--order", f"recorded:{NAME}"]
    commands.done("train", *SMALL, *RUNS[name], *order, "--name", "again")
    again = open_run("again", tmp_path / "runs")
    assert again.digest == run.digest
    assert [again.round(c.round).commit.identity() for c in commits] == [c.identity() for c in commits]
