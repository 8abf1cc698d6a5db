"""Workers that die before round 1: real processes, killed at chosen moments; one line, and the same bits."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from distributed import Client, LocalCluster

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.patience import PATIENCE
from tests.tasks.executors import deeds
from tests.tasks.executors.deeds import lines

DEED = """
    deed = Path(__file__).with_name(f"do-{partition}")
    if deed.exists():
        text = deed.read_text()
        deed.unlink()
        exec(text, globals())
    generator"""
SOURCE = deeds.SOURCE.replace("\n    generator", DEED)
"""Of each partition the data do what a file says, once."""
FIELDS = {"partitions": 4, "rounds": 3, "local_steps": 2, "batch_size": 5, "held_out": 0}

DEADLY = """
import os, signal, sys

class Deadly:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("DIES_AT"):
            os.kill(os.getpid(), signal.SIGKILL)

sys.meta_path.insert(0, Deadly())
"""
"""Kills the process that begins to import what `DIES_AT` says."""

LOST = r"worker tcp://\S+ is lost; (it had no work|its work is done again)"


@pytest.fixture
def fields(own) -> dict[str, object]:
    path = own(SOURCE)
    return FIELDS | {"data": f"{path}:data", "model": f"{path}:Network"}


@pytest.fixture
def hook(tmp_path: Path) -> str:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(DEADLY)
    return str(tmp_path / "hook")


@pytest.mark.parametrize(
    "module",
    [
        "roundweave",
        *(pytest.param(m, marks=pytest.mark.slow) for m in ("roundweave.tasks.executors.pool", "torch")),
    ],
)
def test_a_worker_that_dies_at_what_a_run_has_it_import_costs_a_line(
    train, fields, dask_processes, hook, tmp_path, caplog, module
) -> None:
    reference = train(**fields, name="reference")
    scheduler = dask_processes(tmp_path, 2, PYTHONPATH=hook, DIES_AT=module)
    with Client(scheduler_file=scheduler, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
    with connect(scheduler, 2) as client:
        run = train(GraphExecutor(client), **fields, name="there")
        assert len(client.nthreads()) == 1
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(LOST, line)


@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_a_worker_that_dies_while_it_reads_the_data_costs_a_line(train, fields, tmp_path, caplog, kind) -> None:
    reference = train(**fields, name="reference")
    (tmp_path / "do-2").write_text("os.kill(os.getpid(), signal.SIGKILL)")
    with connect(None, 2) as client:
        run = train(kind(client), **fields, name="there")
    assert run.digest == reference.digest
    (line,) = lines(caplog)
    assert re.fullmatch(LOST, line)


def test_each_worker_answers_for_itself_where_one_dies_that_was_asked(tmp_path) -> None:
    mark = tmp_path / "once"
    mark.touch()

    def answer() -> int:
        try:
            mark.unlink()
        except FileNotFoundError:
            return os.getpid()
        os._exit(9)

    with connect(None, 2) as client:
        workers = client.run(os.getpid)
        given = GraphExecutor(client).each(answer)
    (alive,) = workers.keys() & given.keys()
    assert given[alive] == workers[alive]
    assert len({*given.values()}) == len(given), "also one that was started meanwhile answers for itself"


def test_data_at_which_every_worker_dies_end_the_run_with_a_line(train, own, tmp_path) -> None:
    path = own(SOURCE.replace("deed.unlink()", ""))
    (tmp_path / "do-2").write_text("os.kill(os.getpid(), signal.SIGKILL)")
    named = FIELDS | {"data": f"{path}:data", "model": f"{path}:Network"}
    why = r"\d workers died one after the other at its work.*|the scheduler forgot it"
    line = rf"work before round 1 was lost \d times \(({why})\); start again"
    deadly = pytest.raises(ClusterError, match=line)
    with connect(None, 2) as client, deadly:
        train(GraphExecutor(client), **named)


@contextmanager
def two_workers(folder: Path) -> Iterator[tuple[str, list[subprocess.Popen[bytes]]]]:
    """The address of a scheduler, and two processes of workers that nobody starts again."""
    folder.mkdir()
    with LocalCluster(n_workers=0, threads_per_worker=1, dashboard_address=":0", silence_logs="CRITICAL") as local:
        command = [sys.executable, "-m", "dask", "worker", local.scheduler_address, "--no-nanny"]
        command += ["--nthreads", "1", "--local-directory", str(folder)]
        workers = [subprocess.Popen(command, stderr=subprocess.DEVNULL) for _ in range(2)]
        try:
            with Client(local.scheduler_address, set_as_default=False) as client:
                client.wait_for_workers(2, timeout=PATIENCE)
            yield local.scheduler_address, workers
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_a_worker_may_be_killed_at_any_moment_before_round_1(train, fields, tmp_path, kind) -> None:
    """At every quarter of a second from the moment on at which the client comes."""
    reference = train(**fields, name="reference")
    for moment in range(16):
        with two_workers(tmp_path / f"{moment}") as (address, workers):
            killer = threading.Timer(moment / 4, workers[moment % 2].kill)
            killer.start()
            with connect(address, 2) as client:
                run = train(kind(client), **fields, name=f"moment-{moment}")
            killer.join()
        assert run.digest == reference.digest, f"killed after {moment / 4} s"
