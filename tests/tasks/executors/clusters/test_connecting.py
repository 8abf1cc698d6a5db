"""Connecting to Dask, and what is refused of it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import dask
import httpx
import psutil
import pytest
from distributed import Client, LocalCluster
from distributed.security import Security

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.clusters import connecting
from roundweave.tasks.executors.clusters.connecting import connect, local_cluster
from roundweave.tasks.executors.clusters.workers import finished, usable_workers
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.patience import PATIENCE
from tests.storage.places.s3_server import free_port
from tests.tasks.executors.deeds import lines

SMALL = {"partitions": 4, "rounds": 3, "local_steps": 2}


def threads(workers: int, each: int) -> LocalCluster:
    """A cluster within this process."""
    return LocalCluster(
        n_workers=workers,
        threads_per_worker=each,
        processes=False,
        dashboard_address=":0",
        silence_logs="CRITICAL",
    )


@pytest.fixture
def client() -> Iterator[Client]:
    with threads(2, 1) as local, Client(local, set_as_default=False) as client:
        yield client


@pytest.mark.parametrize("address", ["tcp://127.0.0.1:{}", "127.0.0.1:{}", "nonsense://somewhere"])
def test_a_scheduler_that_does_not_answer_is_one_clear_error(monkeypatch, address: str) -> None:
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.5)
    address = address.format(free_port())
    says = rf"no Dask scheduler answers at {address} within 0.5 s \(\w+Error.*\); start one"
    with pytest.raises(ClusterError, match=says), connect(address, 2):
        pass


def test_a_scheduler_file_that_is_not_there_is_named(tmp_path) -> None:
    path = str(tmp_path / "scheduler.json")
    with pytest.raises(ClusterError, match=f"no scheduler file {path}; start one with"), connect(path, 2):
        pass


def test_a_scheduler_without_workers_is_refused_after_a_line_that_says_for_how_long_it_waits(caplog) -> None:
    refused = pytest.raises(ClusterError, match=r"no worker is there after 1\.5 s; start one with")
    with threads(0, 1) as local, connect(local.scheduler.address, 2, wait_for_workers=1.5) as client, refused:
        usable_workers(client)
    assert lines(caplog) == ["no worker is there: waiting for one, 1.5 s at most (--wait-for-workers)"]


def test_usable_workers_come_in_order(client) -> None:
    found = usable_workers(client)
    assert found == sorted(client.nthreads())
    assert len(found) == 2


@pytest.mark.parametrize("workers", [1, 3])
def test_a_local_cluster_has_as_many_processes_as_are_asked_for_whatever_the_machine(workers: int) -> None:
    with connect(None, workers) as client:
        assert list(client.nthreads().values()) == [1] * workers
        assert len(set(client.run(os.getpid).values())) == workers


def test_the_client_that_is_there_is_used_and_stays(client) -> None:
    with client.as_current():
        with connect(None, 7) as found:
            assert found is client
        assert client.status == "running"


def test_an_address_is_connected_to_and_left(client) -> None:
    with connect(client.scheduler.address, 7) as found:
        assert found is not client
        assert usable_workers(found) == usable_workers(client)
    assert found.status == "closed"
    assert client.status == "running"


def test_what_dask_logs_of_a_named_scheduler_is_not_read_beside_our_own_lines(client, caplog) -> None:
    logger = logging.getLogger("distributed.client")
    with connect(client.scheduler.address, 1):
        logger.error("Failed to reconnect")
    assert not caplog.records
    logger.error("heard again")
    assert [record.getMessage() for record in caplog.records] == ["heard again"]


def test_a_tasks_own_error_reaches_the_caller(client) -> None:
    with pytest.raises(ZeroDivisionError):
        finished(client, client.submit(lambda: 1 / 0))
    assert finished(client, client.submit(lambda: 42)).result() == 42


def test_work_that_does_not_matter_any_more_is_not_waited_for(client) -> None:
    future = client.submit(time.sleep, 0.3)
    assert finished(client, future, unless=lambda: True) is future


def listening() -> set[tuple[int, str, int]]:
    """Process, address and port of all that this process and those below it listen on."""
    here = psutil.Process()
    return {
        (process.pid, *found.laddr)
        for process in (here, *here.children(recursive=True))
        for found in process.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    }


def test_why_a_run_ends_is_told_also_where_its_cluster_does_not_close(monkeypatch) -> None:
    """As where each worker dies while it begins: `WorkerProcess.kill` may then find no process to wait for."""
    close = LocalCluster.close

    def fails_after(cluster: LocalCluster) -> None:
        close(cluster)
        raise AssertionError("can only join a started process")

    monkeypatch.setattr(LocalCluster, "close", fails_after)
    with pytest.raises(ClusterError, match="its work is lost"), local_cluster(1):
        raise ClusterError("its work is lost")


@pytest.fixture
def dying(monkeypatch, own) -> Callable[[int], None]:
    """Have so many workers be killed before they have joined their cluster."""

    def kill(count: int) -> None:
        left = Path(own("", "left"))
        left.write_text("x" * count)
        source = f"""
import os, pathlib, signal
left = pathlib.Path({str(left)!r})
if text := left.read_text():
    left.write_text(text[1:])
    os.kill(os.getpid(), signal.SIGKILL)
"""
        preload = [*connecting.LOCAL_SETTINGS["distributed.worker.preload"], own(source, "dying")]
        monkeypatch.setitem(connecting.LOCAL_SETTINGS, "distributed.worker.preload", preload)

    return kill


def test_a_worker_that_dies_as_it_begins_has_the_cluster_begun_anew(dying) -> None:
    dying(1)
    with connect(None, 1) as client:
        assert client.submit(sum, [1, 2]).result() == 3


def test_workers_that_always_die_as_they_begin_are_one_clear_error(dying) -> None:
    dying(9)
    with pytest.raises(ClusterError, match="did not begin, 3 times in a row"), connect(None, 1):
        pass


def test_a_local_cluster_listens_to_this_machine_alone() -> None:
    before = listening()
    with local_cluster(1) as cluster:
        opened = listening() - before
        dashboard = cluster.dashboard_link
    assert {address for _, address, _ in opened} == {"127.0.0.1"}
    # The scheduler's and its dashboard, the nanny's, the worker's and its own.
    assert len(opened) >= 5
    assert dashboard.startswith("http://127.0.0.1:")


def test_a_private_cluster_lets_nobody_in_and_shows_nothing() -> None:
    with local_cluster(2, private=True) as cluster, Client(cluster, set_as_default=False) as client:
        assert client.submit(sum, [1, 2]).result() == 3
        ports = [int(address.rsplit(":", 1)[1]) for address in (cluster.scheduler_address, *client.nthreads())]
        strangers = [f"{protocol}://127.0.0.1:{ports[0]}" for protocol in ("tcp", "tls")]
        for address, security in zip(strangers, (None, Security.temporary()), strict=True):
            with pytest.raises((OSError, TimeoutError)):
                Client(address, timeout=3, security=security, set_as_default=False)
        http = urlsplit(cluster.dashboard_link).port
        for page in ("status", "info/main/workers.html", "json/counts.json", "metrics"):
            assert httpx.get(f"http://127.0.0.1:{http}/{page}", timeout=PATIENCE).status_code == 404
        worker_pages = client.run(lambda dask_worker: dask_worker.http_server.port).values()
        assert [
            httpx.get(f"http://127.0.0.1:{port}/metrics", timeout=PATIENCE).status_code for port in worker_pages
        ] == [404] * 2


def test_a_private_cluster_gives_the_same_bits(train) -> None:
    fields = {"data": "digits", "algorithm": "fed_avg", "local_steps": 2, "rounds": 3}
    with connect(None, 2, private=True) as client:
        assert client.scheduler.address.startswith("tls://")
        runs = [train(kind(client), 3, **fields, name=kind.__name__) for kind in (GraphExecutor, RanksExecutor)]
    assert {run.digest for run in runs} == {train(**fields, name="inline").digest}


def test_privacy_is_of_local_clusters(client) -> None:
    with pytest.raises(ClusterError, match="--private protects a local cluster"), connect("tcp://x:1", 2, True):
        pass
    refused = pytest.raises(ClusterError, match="--private protects a local cluster")
    with client.as_current(), refused, connect(None, 2, private=True):
        pass


def looking(dask_worker: Any) -> tuple[bool, float]:
    """Whether a worker is profiled, and how often in milliseconds its event loop is looked at."""
    callbacks = dask_worker.periodic_callbacks
    return "profile" in callbacks, callbacks["tick"].callback_time


def test_a_local_clusters_workers_are_not_disturbed_to_show_how_they_work() -> None:
    with connect(None, 1) as client:
        assert list(client.run(looking).values()) == [(False, 1000.0)]


@pytest.mark.parametrize(
    ("kind", "workers"), [(GraphExecutor, 1), pytest.param(RanksExecutor, 2, marks=pytest.mark.slow)]
)
def test_workers_of_several_threads_that_somebody_started_give_the_same_bits(
    train, tmp_path, kind, workers: int
) -> None:
    reference = train(**SMALL, name="reference")
    with LocalCluster(n_workers=0, dashboard_address=":0", silence_logs="CRITICAL") as local:
        line = [sys.executable, "-m", "dask", "worker", local.scheduler_address, "--nthreads", "4"]
        line += ["--nworkers", f"{workers}", "--local-directory", str(tmp_path)]
        line += ["--no-nanny"] if workers == 1 else []
        begun = subprocess.Popen(line, stderr=subprocess.DEVNULL)
        try:
            with connect(local.scheduler_address, workers) as client:
                client.wait_for_workers(workers, timeout=PATIENCE)
                assert set(client.nthreads().values()) == {4}
                run = train(kind(client), 3, **SMALL, name="there")
        finally:
            begun.terminate()
            begun.wait()
    assert run.digest == reference.digest


def test_a_cluster_of_a_class_is_started_and_closed(train, tmp_path: Path) -> None:
    reference = train(**SMALL, name="reference")
    (tmp_path / "local.toml").write_text('threads_per_worker = 1\ndashboard_address = ":0"\nprocesses = false\n')
    with connect(f"dask.distributed.LocalCluster:{tmp_path / 'local.toml'}", 2) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        run = train(GraphExecutor(client), 3, **SMALL, name="there")
        address = client.scheduler.address
    assert run.digest == reference.digest
    with pytest.raises(OSError, match="Timed out"):
        Client(address, timeout=1, set_as_default=False)


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [
        ("nothing.NoCluster", r"no class nothing\.NoCluster is installed here"),
        ("dask.distributed.NoCluster", r"no class dask\.distributed\.NoCluster is installed here"),
        ("dask.distributed.LocalCluster:none.toml", r"cannot read none\.toml .*; it has the options"),
        ("dask.distributed.LocalCluster:{wrong}", r"dask\.distributed\.LocalCluster does not start: .*coress"),
    ],
)
def test_a_class_that_is_not_there_or_is_refused_is_named(tmp_path: Path, scheduler: str, says: str) -> None:
    (wrong := tmp_path / "wrong.toml").write_text('coress = 1\ndashboard_address = ":0"\n')
    with pytest.raises(ClusterError, match=says), connect(scheduler.format(wrong=wrong), 2):
        pass


def test_local_clusters_at_once_leave_the_settings_of_dask_as_they_were() -> None:
    """Whichever of them ends first."""

    def settings() -> list[object]:
        of_dask = [dask.config.get(name, "none") for name in connecting.LOCAL_SETTINGS]
        return [*of_dask, logging.getLogger("distributed").level]

    before = settings()
    first, second = local_cluster(1), local_cluster(1)
    first.__enter__()
    with second:
        first.__exit__(None, None, None)
        assert dask.config.get("distributed.scheduler.allowed-failures") == 5
        assert logging.getLogger("distributed").level == logging.CRITICAL
    assert settings() == before


def test_a_local_cluster_is_encrypted_where_the_settings_of_dask_require_it() -> None:
    with dask.config.set({"distributed.comm.require-encryption": True}), connect(None, 1) as client:
        assert client.scheduler.address.startswith("tls://")
        assert client.submit(int, "7").result() == 7


def test_a_setting_by_which_no_cluster_starts_is_one_clear_error() -> None:
    wrong = dask.config.set({"distributed.scheduler.preload": ["not_there"]})
    with (
        wrong,
        pytest.raises(ClusterError, match=r"a local cluster does not start: .*not_there"),
        connect(None, 1),
    ):
        pass
