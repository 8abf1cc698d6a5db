"""Ranks that raise, die, hang and are left alone: real processes, real signals, the same bits, and no orphan."""

from __future__ import annotations

import re
import subprocess
import sys
import time

import pytest
from distributed import Client, LocalCluster

from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import ClusterError, RoundFailed
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.patience import PATIENCE
from tests.tasks.executors.deeds import KILL, STOP, foreign, lines, until

slow = pytest.mark.slow


@pytest.fixture
def fields(fields) -> dict[str, object]:
    return fields | {"rounds": 30}


def processes(run: Run) -> list[set[str]]:
    """Which processes mapped each round."""
    return [{u.worker for u in run.round(n).commit.updates.values()} for n in range(1, run.done + 1)]


@pytest.mark.parametrize("partitions", [pytest.param((0,), marks=slow), pytest.param((2,), marks=slow), (0, 2)])
def test_a_group_that_loses_ranks_gives_the_same_bits(train, client, fields, do, partitions, caplog) -> None:
    """Partition 0 is of the first rank, which commits; 2 is of the second."""
    reference = train(**fields, name="reference")
    for number, partition in enumerate(partitions):
        do(KILL, partition, 5 + 8 * number)
    run = train(RanksExecutor(client), 30, **fields, name="there")
    assert run.digest == reference.digest
    told = [line for line in lines(caplog) if not line.startswith("no worker is there: waiting for one")]
    assert len(told) == len(partitions)
    assert all(re.fullmatch(r"worker \S+ is lost; its work is done again", line) for line in told)
    assert processes(run)[0] - processes(run)[-1], "a rank that was killed is there at the end"


@slow
def test_a_rank_that_is_stopped_is_given_up(train, client, fields, do, caplog) -> None:
    reference = train(**fields, name="reference")
    do(STOP, 2, 5)
    run = train(RanksExecutor(client, Setting(worker_timeout=5)), 30, **fields, name="there")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(r"worker \S+ has been silent for \d+ s and is given up; .*", line)


@pytest.mark.parametrize("partition", [0, pytest.param(2, marks=slow)])
def test_a_rank_that_raises_once_costs_no_bit(train, client, fields, do, partition) -> None:
    reference = train(**fields, name="reference")
    do("raise ValueError('too hot')", partition, 3)
    run = train(RanksExecutor(client), 30, **fields, name="there")
    assert run.digest == reference.digest
    assert not any(run.round(n).refused for n in range(1, 31))


@pytest.mark.parametrize("partition", [pytest.param(0, marks=slow), 2])
def test_a_rank_that_fails_ends_the_run_and_frees_workers(train, client, fields, do, partition) -> None:
    do("raise MemoryError('none left')", partition, 3)
    wanted = rf"round \d+: the map of partition {partition} failed with MemoryError: none left"
    executor = RanksExecutor(client)
    with pytest.raises(RoundFailed, match=wanted):
        train(executor, 30, **fields, name="there")
    assert client.submit(sum, [1, 2], workers=list(client.nthreads())[:1]).result(timeout=PATIENCE) == 3
    assert client.submit(sum, [3, 4], workers=list(client.nthreads())[1:]).result(timeout=PATIENCE) == 7
    assert open_run("there").done >= 3


def test_the_partition_at_which_ranks_die_is_named(train, fields, do) -> None:
    do(KILL, 2, 3, always=True)
    with foreign(2) as client, pytest.raises(ClusterError, match=r"round \d+ was lost 2 times \(workers died at"):
        train(RanksExecutor(client), 30, **fields, name="there")


def test_a_hanging_rank_is_named(train, client, fields, hang, caplog) -> None:
    hang(2, 2)
    train(RanksExecutor(client, Setting(worker_timeout=1)), 30, **fields, name="there")
    told = [line.partition(" for ")[0] for line in lines(caplog)]
    assert len(told) == 2
    # The commit of round 2 may be under way until the first rank maps round 4, which another may do before it.
    assert re.fullmatch(r"round [345]: partition 2 has been mapping", *set(told))


def test_the_same_ranks_go_on_over_windows(train, client, fields) -> None:
    reference = train(**fields, name="reference")
    formed = []
    executor = RanksExecutor(client)
    run = train(executor, 4, lambda commit: formed.append(executor._running), **fields, name="there")
    assert run.digest == reference.digest
    assert len(set(formed)) == 1


@slow
def test_workers_that_come_or_go_are_taken_in_or_left_out_at_the_next_window(train, fields, do, tmp_path) -> None:
    fields = fields | {"rounds": 45}
    reference = train(**fields, name="reference")
    sizes = {3: 3, 18: 1}
    for round in sizes:
        do(f"while not Path(__file__).with_name('go-on-{round}').exists(): time.sleep(0.05)", 2, round)
    do("time.sleep(0.1)", 2, 0, always=True)
    cluster = LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL")
    with cluster as local, connect(local.scheduler_address, 1) as client:

        def change(commit) -> None:
            if commit.round in sizes:
                local.scale(sizes[commit.round])
                until(lambda: len(client.nthreads()) == sizes[commit.round])
                (tmp_path / f"go-on-{commit.round}").touch()

        run = train(RanksExecutor(client), 3, change, **fields, name="there")
    assert run.digest == reference.digest
    counts = [len(each) for each in processes(run)]
    assert (counts[0], max(counts), counts[-1]) == (1, 3, 1)


def test_short_rounds_are_done_by_ranks_where_it_may_choose_and_long_ones_are_not(
    train, client, fields, monkeypatch
) -> None:
    fields |= {"rounds": 9}
    reference = train(**fields, name="reference")
    for bound, by in ((60.0, ["graph"] * 3 + ["ranks"] * 6), (0.0, ["graph"] * 9)):
        monkeypatch.setattr("roundweave.tasks.executors.ranks.SHORT_SECONDS", bound)
        executor = AutoExecutor(client)
        run = train(executor, 3, **fields, name=f"bound-{bound}")
        assert run.digest == reference.digest
        assert [run.round(n).commit.executor for n in range(1, 10)] == by
    assert {reference.round(n).commit.executor for n in range(1, 10)} == {"inline"}
    assert reference.round(0).commit.executor == ""


@pytest.mark.parametrize(
    "options", [pytest.param({"workers": 1, "threads": 3}, marks=slow), {"workers": 2, "processes": False}]
)
def test_workers_that_share_a_process_are_no_ranks_and_get_the_same_bits(train, fields, options) -> None:
    reference = train(**fields, name="reference")
    with foreign(**options) as client:
        run = train(RanksExecutor(client), 4, **fields, name="there")
    assert run.digest == reference.digest


def test_ranks_end_where_a_commit_says_stop(train, client, fields) -> None:
    fields = fields | {"held_out": 0.2, "patience": 3, "lr": 1e-9}
    reference = train(**fields, name="reference")
    run = train(RanksExecutor(client), 30, **fields, name="there")
    until(lambda: not any(client.processing().values()))
    assert (run.done, run.digest) == (reference.done, reference.digest)
    assert run.done < 30


def test_ranks_that_are_left_in_mid_run_end_once_the_run_is_let_go(train, client, fields) -> None:
    class Left(Exception):
        pass

    def leave(commit) -> None:
        if commit.round == 3:
            raise Left

    with pytest.raises(Left):
        train(RanksExecutor(client), 5, leave, **fields | {"rounds": 100_000}, name="there")
    done = open_run("there").done
    assert not any(client.processing().values())
    time.sleep(0.5)
    assert open_run("there").done == done


LEFT = """
import sys
from distributed import Client
from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.tasks.executors.base import open_executor
config = TrainConfig(data=sys.argv[2], model=sys.argv[3], root=sys.argv[4], partitions=4, local_steps=2,
    batch_size=5, held_out=0, rounds=100_000, name="there", scheduler=sys.argv[1], executor="ranks")
with open_executor("ranks", scheduler=config.scheduler) as executor, prepared(resolve(config), executor) as ready:
    for commit in executor.run(ready.job, 1, 5):
        pass
    print(commit.round, flush=True)
    sys.stdin.read()
"""


@slow
@pytest.mark.parametrize("killed", [True, False])
def test_ranks_whose_client_is_gone_end_and_leave_their_workers_free(
    fields, dask_processes, tmp_path, killed
) -> None:
    scheduler = dask_processes(tmp_path)
    line = [sys.executable, "-c", LEFT, scheduler, fields["data"], fields["model"], str(tmp_path / "runs")]
    left = subprocess.Popen(line, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    assert left.stdout.readline() == "5\n"
    if killed:
        left.kill()
    left.communicate()
    with Client(scheduler_file=scheduler) as client:
        until(lambda: not any(client.processing().values()))
        assert client.submit(sum, [1, 2]).result(timeout=PATIENCE) == 3
    done = open_run("there", tmp_path / "runs").done
    time.sleep(0.5)
    assert open_run("there", tmp_path / "runs").done == done
