"""Who writes a run: processes that begin at once, and one that is superseded."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator

import pytest

from flows.stored import Run
from storage.places.local import LocalPlace
from storage.rounds.lease import read_lease

FIELDS = {"model": "logistic", "partitions": 2, "local_steps": 1, "rounds": 4}

BEGIN = f"""
import sys, time
from pathlib import Path
from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.preparing.job import prepared
from storage.errors import RunBusy, WriterFenced
from storage.rounds import lease
from tasks.executors.inline import InlineExecutor

root, me = Path(sys.argv[1]), sys.argv[2]
fields = {FIELDS!r}
executor = InlineExecutor()
"""

AT_ONCE = (
    BEGIN
    + """
for number in range(int(sys.argv[3])):
    resolved = resolve(TrainConfig(**fields, name=f"run{number}", root=root))
    (root / f"ready{number}{me}").touch()
    while not (root / f"go{number}").exists():
        time.sleep(0.0001)
    try:
        with prepared(resolved, executor) as ready:
            done = [commit.round for commit in executor.run(ready.job, ready.done + 1, 4)]
            print("done", number, flush=True)
    except RunBusy as error:
        print("busy", number, error, flush=True)
"""
)

SUPERSEDED = (
    BEGIN
    + """
lease.SECONDS = 1.0
try:
    with prepared(resolve(TrainConfig(**fields, name="a", root=root)), executor) as ready:
        for commit in executor.run(ready.job, 1, 4):
            print(commit.round, flush=True)
            if commit.round == 2:
                sys.stdin.readline()
except WriterFenced as error:
    print(error, flush=True)
"""
)


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start a script in a process of its own, which does not outlive the test."""
    processes: list[subprocess.Popen[str]] = []

    def start(script: str, *arguments: object) -> subprocess.Popen[str]:
        line = [sys.executable, "-c", script, *map(str, arguments)]
        processes.append(subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        return processes[-1]

    yield start
    for process in processes:
        process.kill()
        process.communicate()


@pytest.mark.slow
def test_of_two_that_begin_at_once_one_trains_and_the_other_is_told_to_wait(started, tmp_path) -> None:
    count = 5
    processes = [started(AT_ONCE, tmp_path, name, count) for name in "ab"]
    for number in range(count):
        while not all((tmp_path / f"ready{number}{name}").exists() for name in "ab"):
            assert all(process.poll() in (None, 0) for process in processes)
            time.sleep(0.001)
        (tmp_path / f"go{number}").touch()
    said = [process.communicate()[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0]
    for number in range(count):
        lines = [line for text in said for line in text.splitlines() if line.split()[1] == str(number)]
        assert len(lines) == 2
        assert any(line.startswith("done") for line in lines)
        assert all("is being written by process" in line for line in lines if line.startswith("busy"))
        assert Run(tmp_path / f"run{number}.zarr").status == "complete"


def test_a_run_that_another_writer_finished_is_complete(started, train, tmp_path) -> None:
    """The first writer is stopped until its claim has expired, and goes on when another has done its rounds."""
    root = tmp_path / "runs"
    process = started(SUPERSEDED, root, "a")
    assert [process.stdout.readline() for _ in range(2)] == ["1\n", "2\n"]
    process.send_signal(signal.SIGSTOP)
    while read_lease(LocalPlace(root / "a.zarr")).fresh:
        time.sleep(0.05)
    run = train(**FIELDS, root=root, name="a")
    assert run.status == "complete"
    process.send_signal(signal.SIGCONT)
    told, _ = process.communicate("\n")
    assert "round 3 of" in told
    assert "was committed by another writer" in told
    assert (run.refresh().status, run.failure, run.done) == ("complete", None, 4)
