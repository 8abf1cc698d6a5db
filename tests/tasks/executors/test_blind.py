"""Workers that do not see the runs' folder: they are not used, and are named; where none sees it, the run ends."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from roundweave.storage.errors import NotARun
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.machines import hidden_from
from tests.tasks.executors.deeds import until

NOT_USED = r"worker tcp://\S+ is not used: \S+there.*\.zarr is not this run on a worker"


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[..., Client]]:
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
        connection = connect(local.scheduler_address, 1)

        def begin(seeing: int, blind: int) -> None:
            for line in [command] * seeing + [hidden] * blind:
                started.append(subprocess.Popen(line, stderr=subprocess.DEVNULL))
            until(lambda: len(local.scheduler.workers) == len(started))

        try:
            yield begin, connection
        finally:
            for process in started:
                process.kill()
                process.wait()


def test_a_worker_that_does_not_see_the_runs_is_not_used_and_named(train, fields, start, caplog) -> None:
    """At first it joins in mid-run, then it is there from the beginning."""
    reference, served = train(**fields, name="reference"), fields | {"algorithm": "fed_buff"}
    begin, connection = start
    begin(2, 0)
    with connection as client:

        def join(commit) -> None:
            if commit.round == 1:
                begin(0, 1)

        run = train(GraphExecutor(client), 1, join, **fields, name="there")
        assert run.digest == reference.digest
        for number, kind in enumerate([GraphExecutor, RanksExecutor]):
            run = train(kind(client), 4, **fields, name=f"there-{number}")
            assert run.digest == reference.digest
        assert train(GraphExecutor(client), 4, **served, name="there-served").done == 4
    told = [record.getMessage() for record in caplog.records if record.name == "roundweave"]
    assert 3 <= len(told) <= 4  # the run may have ended before the one that joined was asked for anything
    assert all(re.fullmatch(NOT_USED, line) for line in told)


def test_where_no_worker_sees_the_runs_a_run_ends_with_what_to_do(train, fields, start) -> None:
    begin, connection = start
    begin(0, 2)
    wanted = r"is not this run on a worker; give a --root \(a folder, a bucket\) that they share"
    with connection as client, pytest.raises(NotARun, match=wanted):
        train(GraphExecutor(client), 1, **fields, name="there")
