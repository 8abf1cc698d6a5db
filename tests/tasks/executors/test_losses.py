"""Workers that hang, die and are killed: real processes, real signals; what the user reads, and the same bits."""

from __future__ import annotations

import logging
import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client, LocalCluster

from flows.config.resolving import resolve, work_of
from flows.config.train import TrainConfig
from flows.stored import Run
from storage.errors import ClusterError
from tasks.clusters.connecting import connect
from tasks.clusters.workers import wait_at_most
from tasks.evidence.results import RoundResult
from tasks.executors.graph import GraphExecutor
from tasks.executors.inline import InlineExecutor
from tasks.rounds.job import Attempt, Job
from tasks.rounds.plan import RoundPlan

SOURCE = """
import os, signal, time
from pathlib import Path
import torch
from torch.nn.functional import cross_entropy

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20, 3, generator=generator)
    inputs[:, 0] = partition
    return inputs, (inputs[:, 1] > 0).long()

class Network(torch.nn.Linear):
    '''Does at partition 2 what a file says, once: it takes the file away.'''
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, inputs):
        if self.training and inputs[0, 0] == 2:
            for mark in sorted(Path(__file__).parent.glob("do-*")):
                deed = mark.read_text()
                if not mark.name.startswith("do-always"):
                    mark.unlink()
                exec(deed, globals())
        return super().forward(inputs)
"""
FIELDS = {"partitions": 4, "rounds": 4, "local_steps": 2, "batch_size": 5, "held_out": 0}


@pytest.fixture
def fields(own) -> dict[str, object]:
    path = own(SOURCE)
    return FIELDS | {"data": f"{path}:data", "model": f"{path}:Network"}


@pytest.fixture
def arm(tmp_path: Path):
    """Have something done in the map of partition 2, after a round."""

    def after(round: int, deed: str, name: str = "do-once"):
        def armed(commit) -> None:
            if commit.round == round:
                (tmp_path / name).write_text(deed)

        return armed

    return after


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if record.name == "roundweave"]


STOP = "os.kill(os.getpid(), signal.SIGSTOP)"
KILL = "os.kill(os.getpid(), signal.SIGKILL)"


@pytest.mark.parametrize("window", [1, 4])
def test_the_work_of_a_hung_worker_is_done_elsewhere_and_the_user_reads_it(
    train, fields, arm, caplog, window
) -> None:
    reference = train(**fields, name="reference")
    with connect(None, 2) as client:
        executor = GraphExecutor(client, worker_timeout=5)
        train(executor, 1, **fields | {"rounds": 1}, name="hung")
        arm(1, STOP)(reference.round(1).commit)
        run = train(executor, window, **fields, name="hung")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(
        r"worker tcp://127\.0\.0\.1:\d+ has been silent for \d+ s and is given up; "
        r"mapped again in round 2: partition 2 to 3",
        line,
    )


def test_a_killed_worker_is_told_in_one_line(train, fields, arm, caplog) -> None:
    reference = train(**fields, name="reference")
    with connect(None, 2) as client:
        run = train(GraphExecutor(client), 1, arm(2, KILL), **fields, name="killed")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(r"worker tcp://127\.0\.0\.1:\d+ is lost; mapped again in round 3: partition 2 to 3", line)


def test_rounds_whose_worker_is_killed_are_replayed_elsewhere(train, fields, tmp_path, caplog) -> None:
    run = train(**fields, name="run")
    job = replay_job(run, fields, tmp_path)
    (tmp_path / "do-once").write_text(KILL)
    with connect(None, 2) as client:
        results = list(GraphExecutor(client).replay(job, [1, 2, 3, 4]))
    assert results == [RoundResult(round) for round in (1, 2, 3, 4)]
    assert any("is lost; mapped again in round" in line for line in lines(caplog))


def test_a_partition_that_ends_every_worker_ends_a_replay_with_its_name(train, fields, tmp_path) -> None:
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    (tmp_path / "do-always").write_text(KILL)
    wanted = r"round 3 was lost 2 times \(workers died at partition 2: .*\); the run is as it was"
    with foreign(2) as client, pytest.raises(ClusterError, match=wanted):
        list(GraphExecutor(client).replay(job, [3, 4]))


def replay_job(run: Run, fields: dict[str, object], tmp_path: Path) -> Job:
    """What an executor is given to replay rounds of a run."""
    config = TrainConfig(**fields, root=tmp_path / "runs")
    work, _ = work_of(resolve(config), InlineExecutor())
    return Job(work, Attempt(run.address, "reader", epoch=0, rounds=4), RoundPlan(4))


@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_map_that_hangs_is_named_while_it_hangs(
    train, fields, arm, tmp_path, caplog, monkeypatch, executor
) -> None:
    def goes_on_after_the_second(record: logging.LogRecord) -> bool:
        if lines(caplog):
            (tmp_path / "go-on").touch()
        return True

    monkeypatch.setattr(logging.getLogger("roundweave"), "filters", [goes_on_after_the_second])
    armed = arm(2, "while not Path(__file__).with_name('go-on').exists(): time.sleep(0.1)")
    if executor == "inline":
        train(InlineExecutor(patience=2), 1, armed, **fields, name="hanging")
    else:
        with connect(None, 2) as client:
            train(GraphExecutor(client, worker_timeout=2), 1, armed, **fields, name="hanging")
    told = lines(caplog)
    assert [line.partition(" for ")[0] for line in told] == ["round 3: partition 2 has been mapping"] * 2
    assert all(re.search(r" for \d s, the others took 0\.\d+ s$", line) for line in told)


@contextmanager
def foreign(workers: int = 1, threads: int = 1, **options: object) -> Iterator[Client]:
    """A client of a cluster that is not ours, where a task may see two workers die."""
    few = dask.config.set({"distributed.scheduler.allowed-failures": 1})
    options |= {"n_workers": workers, "threads_per_worker": threads, "dashboard_address": ":0"}
    with (
        few,
        LocalCluster(silence_logs="CRITICAL", **options) as local,
        connect(local.scheduler_address, 1) as client,
    ):
        yield client


DEADLY = r"round 2 was lost 2 times \(workers died at partition 2: 2 workers died one after the other"


def test_the_partition_at_which_workers_die_is_named(train, fields, arm) -> None:
    armed = arm(1, KILL, "do-always")
    with foreign(2) as client, pytest.raises(ClusterError, match=DEADLY) as caught:
        train(GraphExecutor(client), 1, armed, **fields, name="deadly")
    assert "\n" not in str(caught.value)


def test_a_partition_that_takes_all_memory_is_named(train, fields, arm) -> None:
    """The nanny kills its worker at 95 % of the memory it may have."""
    armed = arm(1, "hog = torch.ones(1 << 28); time.sleep(60)", "do-always")
    with foreign(memory_limit="1GiB") as client, pytest.raises(ClusterError, match=DEADLY):
        train(GraphExecutor(client), 1, armed, **fields, name="hungry")


@contextmanager
def without_nanny(tmp_path: Path) -> Iterator[tuple[Client, list[subprocess.Popen[bytes]]]]:
    """Two worker processes that nobody starts again."""
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL") as local:
        command = [sys.executable, "-m", "dask", "worker", local.scheduler_address, "--no-nanny"]
        command += ["--nthreads", "1", "--local-directory", str(tmp_path)]
        workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            with connect(local.scheduler_address, 1) as client:
                client.wait_for_workers(2, timeout=60)
                yield client, workers
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def test_where_no_worker_is_left_it_is_told_what_they_died_at(train, fields, arm, tmp_path) -> None:
    wanted = "workers died at partition 2 to 3: the scheduler has no workers after 1 s; start one"
    with without_nanny(tmp_path) as (client, _), pytest.raises(ClusterError, match=wanted):
        wait_at_most(client, 1)
        train(GraphExecutor(client), 1, arm(1, KILL, "do-always"), **fields, name="deadly")


def test_a_hung_worker_that_nobody_ends_is_left_behind(train, fields, arm, tmp_path) -> None:
    reference = train(**fields, name="reference")
    with without_nanny(tmp_path) as (client, workers):
        run = train(GraphExecutor(client, worker_timeout=5), 2, arm(2, STOP), **fields, name="hung")
        assert sum(psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED for worker in workers) == 1
        assert len(client.nthreads()) == 1
    assert run.digest == reference.digest


@pytest.mark.parametrize(
    "options", [{"workers": 1, "threads": 3}, {"workers": 2, "threads": 2, "processes": False}]
)
def test_workers_of_several_threads_map_one_partition_at_a_time(train, options) -> None:
    """Dropout draws from torch's generator, of which a process has one."""
    fields = {"partitions": 6, "model_options": {"hidden": 16, "dropout": 0.3}, "local_steps": 3, "rounds": 3}
    reference = train(**fields, name="reference")
    with foreign(**options) as client:
        run = train(GraphExecutor(client), 2, **fields, name="threads")
    assert run.digest == reference.digest
