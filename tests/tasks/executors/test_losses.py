"""Workers that hang, die, are paused and come late: real signals; what the user reads, and the same bits."""

from __future__ import annotations

import re

import dask
import psutil
import pytest
from distributed import Client, LocalCluster, Status

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import wait_at_most
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from roundweave.tasks.rounds.evidence.results import RoundResult
from tests.rows import but_first
from tests.tasks.executors.deeds import KILL, PLACE, STOP, bare, foreign, identities, lines, replay_job, until

slow = pytest.mark.slow
KINDS = pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])


@slow
@pytest.mark.parametrize("window", [1, 4])
def test_the_work_of_a_hung_worker_is_done_elsewhere(train, client, fields, do, caplog, window) -> None:
    """And the user reads it."""
    reference = train(**fields, name="reference")
    do(STOP, 2, 1)
    executor = GraphExecutor(client, Setting(worker_timeout=5))
    train(executor, 1, **fields | {"rounds": 1}, name="there")
    assert identities(train(executor, window, **fields, name="there")) == identities(reference)
    says = r"worker \S+ has been silent for \d+ s and is given up; mapped again in round 2: partition 2 to 3"
    (line,) = lines(caplog)
    assert re.fullmatch(says, line)


def test_a_killed_worker_is_told_in_one_line(equal, client, fields, do, caplog) -> None:
    do(KILL, 2, 2)
    equal(GraphExecutor(client), **fields)
    (line,) = lines(caplog)
    assert re.fullmatch(r"worker tcp://127\.0\.0\.1:\d+ is lost; mapped again in round 3: partition 2 to 3", line)


def test_a_map_of_another_run_on_the_same_workers_is_not_told_of(train, client, fields, do, caplog) -> None:
    """Although a worker's last heartbeat was that of the other run's map."""
    do("time.sleep(3)", 2)
    executor = GraphExecutor(client, Setting(worker_timeout=60))
    train(executor, 1, **fields | {"rounds": 1}, name="other")
    train(GraphExecutor(client, Setting(worker_timeout=1)), 1, **fields, name="there")
    assert lines(caplog) == []


@pytest.mark.thorough
def test_rounds_whose_worker_is_killed_are_replayed_elsewhere(train, client, fields, do, tmp_path, caplog) -> None:
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    do(KILL, 2)
    results = list(GraphExecutor(client).replay(job, [1, 2, 3, 4]))
    assert results == [RoundResult(round) for round in (1, 2, 3, 4)]
    assert any("is lost; mapped again in round" in line for line in lines(caplog))


@pytest.mark.parametrize("says", but_first(["round 1{}rounds to 0 are kept"], ["round 3{}the run is as it was"]))
def test_a_partition_that_ends_every_worker_is_named(train, fields, do, tmp_path, says) -> None:
    """By a run and by a replay."""
    job = replay_job(train(**fields, name="run"), fields, tmp_path)
    deadly = r" was lost 2 times \(workers died at partition 2: 2 workers died one after the other.*\); "
    do(KILL, 2, always=True)
    with foreign(2) as client, pytest.raises(ClusterError, match=says.format(deadly)):
        if "3" in says:
            list(GraphExecutor(client).replay(job, [3, 4]))
        train(GraphExecutor(client), 1, **fields, name="there")


@slow
@KINDS
def test_a_partition_that_takes_all_memory_is_named_and_given_up(train, fields, do, caplog, kind) -> None:
    """After the third worker. The nanny kills its worker at 95 % of the memory it may have; heartbeats tell
    meanwhile what it maps."""
    do("hog = [(torch.ones(1 << 22), time.sleep(0.05)) for _ in range(1000)]", 2, 1, always=True)
    wanted = r"workers died at partition [^:]*2[^:]*: 3 workers ran out of memory in a row \(.* of 1.00 GiB\)"
    with foreign(memory_limit="1GiB") as client, pytest.raises(ClusterError, match=wanted):
        train(kind(client), 1, **fields, name="there")
    told = [line for line in lines(caplog) if " is lost" in line]
    assert len(told) == 3
    assert all("is lost, as it ran out of memory at partition 2 (" in line for line in told)


@pytest.mark.thorough
def test_where_no_worker_is_left_it_is_told_what_they_died_at(train, fields, do, tmp_path) -> None:
    do(KILL, 2, 1, always=True)
    wanted = "workers died at partition 2 to 3: no worker is there after 1 s; start one"
    refused = pytest.raises(ClusterError, match=wanted)
    with bare(tmp_path, 2) as cluster, connect(cluster.address, 1) as client, refused:
        wait_at_most(client, 1)
        train(GraphExecutor(client), 1, **fields, name="there")


@slow
@KINDS
def test_a_hung_worker_that_nobody_ends_is_left_behind(equal, fields, do, tmp_path, kind) -> None:
    do(STOP, 2, 2)
    with bare(tmp_path, 2) as cluster, connect(cluster.address, 1) as client:
        equal(kind(client, Setting(worker_timeout=5)), 2, **fields)
        stopped = [psutil.Process(worker.pid).status() == psutil.STATUS_STOPPED for worker in cluster.workers]
        assert (sum(stopped), len(client.nthreads())) == (1, 1)


THREADS = [{"workers": 1, "threads": 3}, {"workers": 2, "threads": 2, "processes": False}]


@pytest.mark.parametrize(
    ("kind", "options"),
    but_first(zip([GraphExecutor, RanksExecutor], THREADS, strict=True), [RanksExecutor, GraphExecutor], THREADS),
)
def test_workers_of_several_threads_map_one_partition_at_a_time(equal, kind, options) -> None:
    """Dropout draws from the generator that a process has. Workers that share a process are no ranks."""
    fields = {"partitions": 6, "model_options": {"hidden": 16, "dropout": 0.3}, "local_steps": 3, "rounds": 3}
    with foreign(**options) as client:
        equal(kind(client), 2, **fields)


@pytest.mark.parametrize("kind", but_first([GraphExecutor], [RanksExecutor]))
def test_workers_that_are_all_paused_end_a_run_with_a_line(train, caplog, kind) -> None:
    """Dask pauses a worker whose memory is short; no run waits for it for ever."""
    at_once = {"distributed.worker.memory.pause": 0.001, "distributed.worker.memory.spill": False}
    wanted = "every worker has been paused by Dask for 3 s, as its memory is short; give"
    with dask.config.set(at_once), foreign(1, processes=False, memory_limit="4GiB") as client:
        until(lambda: [*client.run(lambda dask_worker: dask_worker.status).values()] == [Status.paused])
        with pytest.raises(ClusterError, match=wanted):
            train(kind(client, Setting(worker_timeout=3.0)), 1, rounds=2)
    (notice,) = lines(caplog)
    assert "is paused by Dask: it uses" in notice
    assert notice.endswith("of 4.00 GiB of memory; give workers more")


@slow
@KINDS
def test_runs_ask_a_cluster_that_adapts_from_zero_for_workers(train, kind) -> None:
    """The second one when those of the first have gone."""
    fields = {"partitions": 4, "rounds": 6, "local_steps": 2}
    reference = train(**fields, name="reference")
    local = LocalCluster(n_workers=0, threads_per_worker=1, **PLACE)
    with local as cluster, Client(cluster, set_as_default=False) as watching:
        cluster.adapt(minimum=0, maximum=2, interval="100ms", wait_count=2)
        for name in ("first", "second"):
            until(lambda: not watching.nthreads())
            with connect(cluster.scheduler_address, 2) as client:
                run = train(kind(client), 2, **fields, name=name)
            assert run.digest == reference.digest
