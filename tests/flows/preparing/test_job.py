"""Who writes a run: processes that begin at once, one that is superseded, machines that compute alike."""

from __future__ import annotations

import os
import random
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace

import pytest

from roundweave.flows.machines import Machine, machines
from roundweave.flows.stored import Run
from roundweave.storage.errors import NumericsMismatch
from roundweave.storage.places.local import LocalPlace
from roundweave.storage.rounds.lease import read_lease

FIELDS = {"model": "logistic", "partitions": 2, "local_steps": 1, "rounds": 4}

BEGIN = f"""
import sys, time
from pathlib import Path
from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.storage.errors import RunBusy, WriterFenced
from roundweave.storage.rounds import lease
from roundweave.tasks.executors.inline import InlineExecutor

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

MANY = 60

TAKING_TURNS = (
    BEGIN
    + """
from dataclasses import replace
from roundweave.tasks.rounds import engine

lease.SECONDS, honest = 0.3, engine.reduce_apply

def of_my_own(*given):
    outcome = honest(*given)
    params = {dtype: vector + sum(map(ord, me)) * 1e-3 for dtype, vector in outcome.state.params.items()}
    return replace(outcome, state=replace(outcome.state, params=params))

engine.reduce_apply = of_my_own  # so that no round of one writer has the bits of another's
try:
    with prepared(resolve(TrainConfig(**fields | {"rounds": MANY}, name="a", root=root)), executor) as ready:
        print("ready", flush=True)
        for commit in executor.run(ready.job, ready.done + 1, MANY):
            print(commit.round, commit.state, flush=True)
except (WriterFenced, RunBusy) as error:
    print("stopped", error, flush=True)
""".replace("MANY", str(MANY))
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


@pytest.mark.thorough
def test_of_two_that_begin_at_once_one_trains_and_the_other_is_told_to_wait(started, tmp_path) -> None:
    count = 3
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


@pytest.mark.thorough
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
    taken = f"{root / 'a.zarr'} was taken over by process {os.getpid()} on {socket.gethostname()}"
    assert told == f"{taken}; this writer stops, and what it committed stays\n"
    assert (run.refresh().status, run.failure, run.done) == ("complete", None, 4)


@pytest.mark.slow
def test_writers_that_are_stopped_and_go_on_at_any_moment_lose_no_round(started, tmp_path) -> None:
    """Each is stopped for longer than its claim is valid, until another one has taken the run over."""
    drawn, said = random.Random(0), []
    for attempt in range(3):
        root = tmp_path / f"runs{attempt}"
        root.mkdir()
        writers = []
        for number in range(4):
            writers.append(started(TAKING_TURNS, root, f"w{number}"))
            writers[-1].stdout.readline()
            time.sleep(drawn.uniform(0, 0.3))
            if number < 3:
                writers[-1].send_signal(signal.SIGSTOP)
                time.sleep(0.4)
        for writer in drawn.sample(writers[:-1], 3):
            time.sleep(drawn.uniform(0, 0.1))
            writer.send_signal(signal.SIGCONT)
        lines = [line for writer in writers for line in writer.communicate()[0].splitlines()]
        said += [line for line in lines if line.startswith("stopped")]
        run = Run(root / "a.zarr")
        assert (run.done, run.status, run.verify().findings) == (MANY, "complete", ())
        told = {tuple(line.split()) for line in lines if line[0].isdecimal()}
        assert told == {(str(round), run.round(round).commit.state) for round in range(1, MANY + 1)}
    assert said
    assert all("this writer stops, and what it committed stays" in line for line in said)


def test_a_run_does_not_go_on_where_a_machine_stores_that_computes_other_bits(train, monkeypatch) -> None:
    """Though all machines that map are as they were."""
    fields = {"model": "logistic", "name": "run"}
    train(**fields, rounds=1)

    def with_another_store(*given: object) -> list[Machine]:
        *maps, stores = machines(*given)
        return [*maps, replace(stores, fingerprint=stores.fingerprint | {"processor": "another"})]

    monkeypatch.setattr("roundweave.flows.preparing.job.machines", with_another_store)
    with pytest.raises(NumericsMismatch, match=r"store would compute other bits .* processor 'another'"):
        train(**fields, rounds=2)
