"""Workers that do not see the runs map, too, and hand what is to be stored to others; the bits are equal."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from roundweave.flows.stored import Run
from roundweave.storage.errors import StoreError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.reaching import Mark
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.machines import hidden_from
from tests.tasks.executors.deeds import MEET, lines, until

HANDS_ON = (
    r"worker tcp://\S+ does not reach the store \(\S+/runs is another folder there, or none\): others store for it"
)
STORES_HERE = "no worker reaches the store: a process of this machine stores for them"


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(store=str(tmp_path / "runs"))


@pytest.fixture
def start(tmp_path: Path) -> Iterator[tuple[Callable[..., None], Client, list[subprocess.Popen[bytes]]]]:
    """Start worker processes, of which the blind ones have nothing in the folder of the runs."""
    (tmp_path / "runs").mkdir()
    started: list[subprocess.Popen[bytes]] = []
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL") as local:
        command = [
            sys.executable,
            "-m",
            "dask",
            "worker",
            local.scheduler_address,
            "--no-nanny",
            "--nthreads",
            "1",
        ]
        command += ["--local-directory", str(tmp_path)]
        hidden = hidden_from(tmp_path / "runs", command)

        def begin(seeing: int, blind: int) -> None:
            for line in [command] * seeing + [hidden] * blind:
                started.append(subprocess.Popen(line, stderr=subprocess.DEVNULL))
            until(lambda: len(local.scheduler.workers) == len(started))

        try:
            yield begin, connect(local.scheduler_address, 1), started
        finally:
            for process in started:
                process.kill()
                process.wait()


@pytest.fixture
def meet(fields, do) -> Callable[[str], None]:
    """Have two workers wait for each other in the first map of each: none is done before the other begins.

    Not in that of partition 0, by whose examples one worker tries the network before the rounds.
    """

    def write(name: str) -> None:
        for partition in range(1, fields["partitions"]):
            do(MEET.format(name=name), partition, always=True)

    return write


def mapped_by(run: Run) -> set[int]:
    """The process ids of the workers that mapped the rounds of a run."""
    rounds = [run.round(round).commit for round in run.committed]
    return {int(update.worker.rpartition(":")[2]) for commit in rounds for update in commit.updates.values()}


def test_a_worker_that_does_not_see_the_runs_maps_and_others_store_for_it(
    train, fields, setting, start, meet, caplog
) -> None:
    """At first it joins in mid-run, then it is there from the beginning. It is named once in each run."""
    reference, served = train(**fields, name="reference"), fields | {"algorithm": "fed_buff"}
    begin, connection, started = start
    begin(1, 0)
    with connection as client:

        def join(commit) -> None:
            if commit.round == 1:
                begin(0, 1)

        executor = GraphExecutor(client, setting)
        run = train(executor, 1, join, **fields, name="there")
        executor.pool.end()
        assert run.digest == reference.digest
        for number, kind in enumerate([GraphExecutor, RanksExecutor]):
            meet(f"met-{number}")
            run = train(kind(client, setting), 4, **fields, name=f"there-{number}")
            assert run.digest == reference.digest
            assert mapped_by(run) == {process.pid for process in started}
        assert train(GraphExecutor(client, setting), 4, **served, name="there-served").done == 4
    told = lines(caplog)
    assert len(told) == 4
    assert all(re.fullmatch(HANDS_ON, line) for line in told), told


def test_where_no_worker_sees_the_runs_a_process_of_the_command_stores(
    train, fields, setting, start, meet, caplog
) -> None:
    begin, connection, started = start
    reference = train(**fields, name="reference")
    begin(0, 2)
    meet("met")
    with connection as client:
        executor = GraphExecutor(client, setting)
        run = train(executor, 1, **fields, name="there")
        executor.pool.end()
        assert run.digest == reference.digest
        assert mapped_by(run) == {process.pid for process in started}
    assert lines(caplog) == [STORES_HERE]


def lose_sight() -> None:
    """From now on the worker that calls this does not see the runs."""
    Mark.unreached = lambda self: "gone"


def test_a_worker_that_sees_the_runs_no_more_stores_no_more(setting, start) -> None:
    """What failed there is done by another one, and it is only where none is left that the error stands."""
    begin, connection, started = start
    begin(2, 1)
    with connection as client:
        pool = GraphExecutor(client, setting).pool
        processes = client.run(os.getpid)
        [lost, left] = [worker for worker, process in processes.items() if process != started[2].pid]
        client.run(lose_sight, workers=[lost])
        pool.ask_again(StoreError("it cannot be written"))
        stored = [client.submit(os.getpid, resources=pool.needs("commit", 0), pure=False) for _ in range(8)]
        assert {*client.gather(stored)} == {processes[left]}
        with pytest.raises(StoreError, match="it cannot be written"):
            pool.ask_again(StoreError("it cannot be written"))
