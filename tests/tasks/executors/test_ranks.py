"""Ranks that die, hang and are left alone: real processes, real signals, the same bits, and no orphan."""

from __future__ import annotations

import re
import time

import pytest
from distributed import LocalCluster

from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.rows import but_first
from tests.tasks.executors.deeds import KILL, PLACE, STOP, executors, foreign, idle, lines, until

slow = pytest.mark.slow


@pytest.fixture
def fields(fields) -> dict[str, object]:
    return fields | {"rounds": 20}


def processes(run: Run) -> list[set[str]]:
    """Which processes mapped each round."""
    return [{u.worker for u in run.round(n).commit.updates.values()} for n in range(1, run.done + 1)]


class Left(Exception):
    """A run is left in the middle."""


@pytest.mark.parametrize("partitions", but_first([((0,),)], [((2,),), ((0, 2),)]))
def test_a_group_that_loses_ranks_gives_the_same_bits(equal, client, fields, do, partitions, caplog) -> None:
    """Partition 0 is of the first rank, which commits; 2 is of the second."""
    for number, partition in enumerate(partitions):
        do(KILL, partition, 5 + 8 * number)
    run = equal(RanksExecutor(client), 20, **fields)
    told = [line for line in lines(caplog) if not line.startswith("no worker is there: waiting for one")]
    assert len(told) == len(partitions)
    assert all(re.fullmatch(r"worker \S+ is lost; its work is done again", line) for line in told)
    assert processes(run)[0] - processes(run)[-1], "a rank that was killed is there at the end"


@slow
def test_a_rank_that_is_stopped_is_given_up(equal, client, fields, do, caplog) -> None:
    do(STOP, 2, 5)
    equal(RanksExecutor(client, Setting(worker_timeout=5)), 20, **fields)
    (line,) = lines(caplog)
    assert re.fullmatch(r"worker \S+ has been silent for \d+ s and is given up; .*", line)


@pytest.mark.thorough
def test_the_partition_at_which_ranks_die_is_named(train, fields, do) -> None:
    """A cluster of its own, since it loses all its workers."""
    do(KILL, 2, 3, always=True)
    with foreign(2) as client, pytest.raises(ClusterError, match=r"round \d+ was lost 2 times \(workers died at"):
        train(RanksExecutor(client), 20, **fields, name="there")


@pytest.mark.thorough
def test_the_same_ranks_go_on_over_windows(equal, client, fields) -> None:
    formed, executor = set(), RanksExecutor(client)
    equal(executor, 4, lambda commit: formed.add(executor._running), **fields)
    assert len(formed) == 1


@slow
def test_workers_that_come_or_go_are_taken_in_or_left_out_at_the_next_window(equal, fields, do, tmp_path) -> None:
    sizes = {3: 3, 18: 1}
    for round in sizes:
        do(f"while not Path(__file__).with_name('go-on-{round}').exists(): time.sleep(0.05)", 2, round)
    do("time.sleep(0.1)", 2, 1, always=True)
    alone = LocalCluster(n_workers=1, threads_per_worker=1, **PLACE)
    with alone as local, connect(local.scheduler_address, 1) as client:

        def change(commit) -> None:
            if commit.round in sizes:
                local.scale(sizes[commit.round])
                until(lambda: len(client.nthreads()) == sizes[commit.round])
                (tmp_path / f"go-on-{commit.round}").touch()

        run = equal(RanksExecutor(client), 3, change, **fields | {"rounds": 45})
    counts = [len(each) for each in processes(run)]
    assert (counts[0], max(counts), counts[-1]) == (1, 3, 1)


@pytest.mark.parametrize(("bound", "by"), [(60.0, ["graph"] * 3 + ["ranks"] * 3), (0.0, ["graph"] * 6)])
def test_short_rounds_are_done_by_ranks_where_it_may_choose(equal, client, fields, monkeypatch, bound, by) -> None:
    """And long ones are not."""
    monkeypatch.setattr("roundweave.tasks.executors.ranks.SHORT_SECONDS", bound)
    run = equal(AutoExecutor(client), 3, **fields | {"rounds": 6})
    assert executors(run) == by
    assert run.round(0).commit.executor == ""


def test_ranks_that_are_left_in_mid_run_end_once_the_run_is_let_go(train, client, fields) -> None:
    def leave(commit) -> None:
        if commit.round == 3:
            raise Left

    with pytest.raises(Left):
        train(RanksExecutor(client), 5, leave, **fields | {"rounds": 100_000}, name="there")
    done = open_run("there").done
    assert idle(client)
    time.sleep(0.5)
    assert open_run("there").done == done
