"""Workers that hang, die and are killed: real processes, real signals; what the user reads, and the same bits."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from distributed import Client, LocalCluster

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import Lost, Seen, wait_at_most
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.rounds.evidence.results import RoundResult
from tests.patience import PATIENCE
from tests.tasks.executors.deeds import KILL, STOP, foreign, lines, replay_job

slow = pytest.mark.slow


@slow
@pytest.mark.parametrize("window", [1, 4])
def test_the_work_of_a_hung_worker_is_done_elsewhere_and_the_user_reads_it(
    train, fields, do, caplog, window
) -> None:
    reference = train(**fields, name="reference")
    do(STOP, 2, 1)
    with connect(None, 2) as client:
        executor = GraphExecutor(client, Setting(worker_timeout=5))
        train(executor, 1, **fields | {"rounds": 1}, name="there")
        run = train(executor, window, **fields, name="there")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(
        r"worker tcp://127\.0\.0\.1:\d+ has been silent for \d+ s and is given up; "
        r"mapped again in round 2: partition 2 to 3",
        line,
    )


def test_a_killed_worker_is_told_in_one_line(train, client, fields, do, caplog) -> None:
    reference = train(**fields, name="reference")
    do(KILL, 2, 2)
    run = train(GraphExecutor(client), 1, **fields, name="there")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(r"worker tcp://127\.0\.0\.1:\d+ is lost; mapped again in round 3: partition 2 to 3", line)


def test_rounds_whose_worker_is_killed_are_replayed_elsewhere(train, client, fields, do, tmp_path, caplog) -> None:
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    do(KILL, 2)
    results = list(GraphExecutor(client).replay(job, [1, 2, 3, 4]))
    assert results == [RoundResult(round) for round in (1, 2, 3, 4)]
    assert any("is lost; mapped again in round" in line for line in lines(caplog))


def test_a_partition_that_ends_every_worker_is_named_by_a_run_and_by_a_replay(train, fields, do, tmp_path) -> None:
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    deadly = r" was lost 2 times \(workers died at partition 2: 2 workers died one after the other.*\); "
    do(KILL, 2, 0, always=True)
    with foreign(2) as client:
        executor = GraphExecutor(client)
        with pytest.raises(ClusterError, match=f"round 3{deadly}the run is as it was"):
            list(executor.replay(job, [3, 4]))
        with pytest.raises(ClusterError, match=f"round 1{deadly}rounds to 0 are kept"):
            train(executor, 1, **fields, name="there")


def test_a_partition_at_whose_work_more_workers_died_is_named_before_others(
    train, client, fields, tmp_path, monkeypatch
) -> None:
    """The second worker had to do again what the first one had done, too."""
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    pool = GraphExecutor(client).pool
    keys = {at: ("map", "reader-1-4", 3, at) for at in range(4)}
    died = [Lost("tcp://gone", tuple(keys[at] for at in each), ()) for each in ([2], [0, 2], [0, 1])]
    for lost in died:
        monkeypatch.setattr(pool._watch, "look", lambda lost=lost: Seen((), (lost,), {}))
        pool.look(job)
        assert pool.suspects() == "workers died at partition 2: "
    assert pool.deaths == {0: 1, 1: 1 / 2, 2: 3 / 2}


@pytest.mark.parametrize("executor", ["inline", "graph"])
def test_a_map_that_hangs_is_named_while_it_hangs(train, client, fields, hang, caplog, executor) -> None:
    hang(2, 2)
    setting = Setting(worker_timeout=1)
    own = InlineExecutor(setting) if executor == "inline" else GraphExecutor(client, setting)
    train(own, 1, **fields, name="there")
    told = lines(caplog)
    assert [line.partition(" for ")[0] for line in told] == ["round 3: partition 2 has been mapping"] * 2
    assert all(re.search(r" for \d s, the others took 0\.\d+ s$", line) for line in told)


@slow
@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_a_partition_that_takes_all_memory_is_named_and_given_up_after_the_third_worker(
    train, fields, do, caplog, kind
) -> None:
    """The nanny kills its worker at 95 % of the memory it may have. Heartbeats tell meanwhile what it maps."""
    do("hog = [(torch.ones(1 << 22), time.sleep(0.05)) for _ in range(1000)]", 2, 1, always=True)
    wanted = (
        r"workers died at partition [^:]*2[^:]*: 3 workers ran out of memory in a row \(.* of 1.00 GiB\); give"
    )
    with foreign(memory_limit="1GiB") as client, pytest.raises(ClusterError, match=wanted):
        train(kind(client), 1, **fields, name="there")
    told = [line for line in lines(caplog) if " is lost" in line]
    assert len(told) == 3
    assert all("is lost, as it ran out of memory at partition 2 (" in line for line in told)


@contextmanager
def without_nanny(tmp_path: Path) -> Iterator[tuple[Client, list[subprocess.Popen[bytes]]]]:
    """Two worker processes that nobody starts again."""
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL") as local:
        command = [sys.executable, "-m", "dask", "worker", local.scheduler_address, "--no-nanny"]
        command += ["--nthreads", "1", "--local-directory", str(tmp_path)]
        workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            with connect(local.scheduler_address, 1) as client:
                client.wait_for_workers(2, timeout=PATIENCE)
                yield client, workers
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def test_where_no_worker_is_left_it_is_told_what_they_died_at(train, fields, do, tmp_path) -> None:
    do(KILL, 2, 1, always=True)
    wanted = "workers died at partition 2 to 3: no worker is there after 1 s; start one"
    with without_nanny(tmp_path) as (client, _), pytest.raises(ClusterError, match=wanted):
        wait_at_most(client, 1)
        train(GraphExecutor(client), 1, **fields, name="there")


@slow
@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_a_hung_worker_that_nobody_ends_is_left_behind(train, fields, do, tmp_path, kind) -> None:
    reference = train(**fields, name="reference")
    do(STOP, 2, 2)
    with without_nanny(tmp_path) as (client, workers):
        run = train(kind(client, Setting(worker_timeout=5)), 2, **fields, name="there")
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
