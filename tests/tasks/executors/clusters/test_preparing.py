"""Workers that die, or are refused, before round 1: real processes, one line, and the same bits."""

from __future__ import annotations

import os
import re
import threading
from pathlib import Path

import pytest
from distributed import Client

from roundweave.storage.errors import ClusterError, NumericsMismatch
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import on_workers
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.patience import PATIENCE
from tests.rows import but_first
from tests.tasks.executors.deeds import KILL, bare, identities, lines

KINDS = pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])

DEADLY = """
import os, signal, sys

class Deadly:
    def find_spec(self, name, path=None, target=None):
        if name == os.environ.get("DIES_AT"):
            os.kill(os.getpid(), signal.SIGKILL)

sys.meta_path.insert(0, Deadly())
"""
"""Kills the process that begins to import what `DIES_AT` says."""


def lost_before_it_worked(caplog) -> bool:
    (line,) = lines(caplog)
    return bool(re.fullmatch(r"worker tcp://\S+ is lost; (it had no work|its work is done again)", line))


@pytest.mark.thorough
@pytest.mark.parametrize("module", ["roundweave", "roundweave.tasks.executors.clusters.calls", "torch"])
def test_a_worker_that_dies_at_an_import_costs_a_line(
    equal, fields, dask_processes, tmp_path: Path, caplog, module
) -> None:
    (tmp_path / "hook").mkdir()
    (tmp_path / "hook" / "sitecustomize.py").write_text(DEADLY)
    scheduler = dask_processes(tmp_path, 2, PYTHONPATH=str(tmp_path / "hook"), DIES_AT=module)
    with Client(scheduler_file=scheduler, set_as_default=False) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
    with connect(scheduler, 2) as client:
        equal(GraphExecutor(client), **fields)
        assert len(client.nthreads()) == 1
    assert lost_before_it_worked(caplog)


def test_something_is_registered_with_workers_again_where_one_dies_meanwhile(client) -> None:
    errors = [OSError("a worker is gone")]

    def register() -> None:
        if errors:
            raise errors.pop()

    on_workers(client, register)
    assert errors == []


@pytest.mark.parametrize("kind", but_first([GraphExecutor], [RanksExecutor]))
def test_a_worker_that_dies_while_it_reads_the_data_costs_a_line(train, client, fields, do, caplog, kind) -> None:
    reference = train(**fields, name="reference")
    do(KILL, 2, at="data")
    assert identities(train(kind(client), **fields, name="there")) == identities(reference)
    assert lost_before_it_worked(caplog)


def test_each_worker_answers_for_itself_where_one_dies_that_was_asked(client, tmp_path: Path) -> None:
    mark = tmp_path / "once"
    mark.touch()

    def answer() -> int:
        try:
            mark.unlink()
        except FileNotFoundError:
            return os.getpid()
        os._exit(9)

    workers = client.run(os.getpid)
    given = GraphExecutor(client).each(answer)
    (alive,) = workers.keys() & given.keys()
    assert given[alive] == workers[alive]
    assert len({*given.values()}) == len(given), "also one that was started meanwhile answers for itself"


@pytest.mark.thorough
def test_data_at_which_every_worker_dies_end_the_run_with_a_line(train, client, fields, do) -> None:
    do(KILL, 2, at="data", always=True)
    why = r"\d workers died one after the other at its work.*|the scheduler forgot it"
    at = r"(workers died at partition \d: )?"  # if one of them had no work but that of a partition
    line = rf"work before round 1 was lost \d times \({at}({why})\); start again"
    with pytest.raises(ClusterError, match=line):
        train(GraphExecutor(client), **fields)


@pytest.mark.slow
@pytest.mark.timeout(900)
@KINDS
def test_a_worker_may_be_killed_at_any_moment_before_round_1(train, fields, tmp_path: Path, kind) -> None:
    """At every quarter of a second from the moment on at which the client comes."""
    reference = train(**fields, name="reference")
    for moment in range(16):
        with bare(tmp_path, 2) as cluster:
            killer = threading.Timer(moment / 4, cluster.workers[moment % 2].kill)
            killer.start()
            with connect(cluster.address, 2) as client:
                run = train(kind(client), **fields, name=f"moment-{moment}")
            killer.join()
        assert run.digest == reference.digest, f"killed after {moment / 4} s"


def test_workers_of_another_version_are_refused(train, client, fields, tmp_path: Path, monkeypatch) -> None:
    """Before anything is stored."""
    monkeypatch.setattr("roundweave.flows.training.job.sources", lambda codes: {"Roundweave": "another"})
    with pytest.raises(NumericsMismatch, match=r"tcp://.* has another version of Roundweave .*; install"):
        train(GraphExecutor(client), **fields, name="refused")
    assert not (tmp_path / "runs/refused.zarr").exists()
