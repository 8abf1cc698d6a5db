"""Connecting to Dask, and what is refused of it."""

from __future__ import annotations

import importlib.util
import logging
import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from types import ModuleType
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
from roundweave.tasks.executors.clusters.workers import usable_workers
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.patience import PATIENCE
from tests.rows import but_first
from tests.storage.places.s3_server import free_port
from tests.tasks.executors.deeds import PLACE, lines

SMALL = {"partitions": 4, "rounds": 3, "local_steps": 2}
CLASS = "dask.distributed.LocalCluster"

# What is refused.


@pytest.mark.parametrize(
    ("scheduler", "says"),
    [
        *(
            (address, rf"no Dask scheduler answers at {address} within 0.5 s \(\w+Error.*\); start one")
            for address in (f"tcp://127.0.0.1:{free_port()}", f"127.0.0.1:{free_port()}", "nonsense://somewhere")
        ),
        ("nowhere/scheduler.json", "no scheduler file nowhere/scheduler.json; start one with"),
        ("nothing.NoCluster", r"no class nothing\.NoCluster is installed here"),
        ("dask.distributed.NoCluster", r"no class dask\.distributed\.NoCluster is installed here"),
        (f"{CLASS}:none.toml", r"cannot read none\.toml .*; it has the options"),
        (f"{CLASS}:wrong.toml", rf"{CLASS} does not start: .*coress"),
    ],
    ids=range(8),
)
def test_a_scheduler_that_is_not_there_is_one_clear_error(tmp_path, monkeypatch, scheduler, says) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 0.5)
    Path("wrong.toml").write_text('coress = 1\ndashboard_address = ":0"\n')
    with pytest.raises(ClusterError, match=says), connect(scheduler, 2):
        pass


def test_a_scheduler_without_workers_is_refused_after_a_line_that_says_for_how_long_it_waits(caplog) -> None:
    refused = pytest.raises(ClusterError, match=r"no worker is there after 1\.5 s; start one with")
    none = LocalCluster(n_workers=0, **PLACE)
    with none as local, connect(local.scheduler.address, 2, wait_for_workers=1.5) as client, refused:
        usable_workers(client)
    assert lines(caplog) == ["no worker is there: waiting for one, 1.5 s at most (--wait-for-workers)"]


def test_privacy_is_of_local_clusters(client) -> None:
    says = "--private protects a local cluster"
    with pytest.raises(ClusterError, match=says), connect("tcp://x:1", 2, True):
        pass
    with client.as_current(), pytest.raises(ClusterError, match=says), connect(None, 2, private=True):
        pass


def test_an_asynchronous_client_as_of_a_notebook_is_refused(client, monkeypatch) -> None:
    monkeypatch.setattr(Client, "asynchronous", True)
    with client.as_current(), pytest.raises(ClusterError, match="client is asynchronous; make one without"):
        connect(None, 2).__enter__()


# What is connected to.


def test_the_client_that_is_there_is_used_and_stays(client) -> None:
    with client.as_current():
        with connect(None, 7) as found:
            assert found is client
        assert client.status == "running"


def test_an_address_is_connected_to_and_left(client) -> None:
    with connect(client.scheduler.address, 7) as found:
        assert found is not client
        assert usable_workers(found) == usable_workers(client) == sorted(client.nthreads())
    assert found.status == "closed"
    assert client.status == "running"


@pytest.fixture
def fresh() -> ModuleType:
    """`connecting` as in a process that has no cluster yet: this one may have that of other tests."""
    spec = importlib.util.find_spec(connecting.__name__)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_a_cluster_of_a_class_is_started_and_closed(equal, tmp_path: Path) -> None:
    (tmp_path / "local.toml").write_text('threads_per_worker = 1\ndashboard_address = ":0"\nprocesses = false\n')
    with connect(f"{CLASS}:{tmp_path / 'local.toml'}", 2) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        equal(GraphExecutor(client), 3, **SMALL)
        address = client.scheduler.address
    with pytest.raises(OSError, match="Timed out"):
        Client(address, timeout=1, set_as_default=False)


# Local clusters, which each test has of its own.


def listening() -> set[tuple[int, str, int]]:
    """Process, address and port of all that this process and those below it listen on."""
    here = psutil.Process()
    return {
        (process.pid, *found.laddr)
        for process in (here, *here.children(recursive=True))
        for found in process.net_connections("inet")
        if found.status == psutil.CONN_LISTEN
    }


def test_a_local_cluster_has_the_processes_that_are_asked_for_and_listens_to_this_machine_alone() -> None:
    before = listening()
    with local_cluster(3) as cluster, Client(cluster, set_as_default=False) as client:
        opened = listening() - before
        assert list(client.nthreads().values()) == [1] * 3
        assert len(set(client.run(os.getpid).values())) == 3
        assert cluster.dashboard_link.startswith("http://127.0.0.1:")
    assert {address for _, address, _ in opened} == {"127.0.0.1"}
    # The scheduler's and its dashboard, the nannies', the workers' and their own.
    assert len(opened) >= 11


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
def dying(fresh, own) -> Callable[[int], AbstractContextManager[Client]]:
    """Connect to a local cluster of which so many workers are killed before they have joined it."""

    def connect(count: int) -> AbstractContextManager[Client]:
        left = Path(own("", "left"))
        left.write_text("x" * count)
        source = f"""
import os, pathlib, signal
left = pathlib.Path({str(left)!r})
if text := left.read_text():
    left.write_text(text[1:])
    os.kill(os.getpid(), signal.SIGKILL)
"""
        fresh.LOCAL_SETTINGS["distributed.worker.preload"].append(own(source, "dying"))
        return fresh.connect(None, 1)

    return connect


def test_a_worker_that_dies_as_it_begins_has_the_cluster_begun_anew(dying, tmp_path: Path) -> None:
    with dying(1) as client:
        assert client.submit(sum, [1, 2]).result() == 3
    assert (tmp_path / "left.py").read_text() == ""


def test_workers_that_always_die_as_they_begin_are_one_clear_error(dying) -> None:
    with pytest.raises(ClusterError, match="did not begin, 3 times in a row"), dying(9):
        pass


def test_a_setting_by_which_no_cluster_starts_is_one_clear_error() -> None:
    says = r"a local cluster does not start: .*not_there"
    preload = dask.config.set({"distributed.scheduler.preload": ["not_there"]})
    with preload, pytest.raises(ClusterError, match=says), connect(None, 1):
        pass


@pytest.fixture(scope="module")
def private() -> Iterator[Client]:
    with local_cluster(2, private=True) as cluster, Client(cluster, set_as_default=False) as client:
        yield client


def test_a_private_cluster_lets_nobody_in_and_shows_nothing(private) -> None:
    assert private.submit(sum, [1, 2]).result() == 3
    port = urlsplit(private.scheduler.address).port
    for protocol, security in (("tcp", None), ("tls", Security.temporary())):
        with pytest.raises((OSError, TimeoutError)):
            Client(f"{protocol}://127.0.0.1:{port}", timeout=3, security=security, set_as_default=False)
    shown = urlsplit(private.cluster.dashboard_link).port
    pages = [f"{shown}/{page}" for page in ("status", "info/main/workers.html", "json/counts.json", "metrics")]
    pages += [f"{port}/metrics" for port in private.run(lambda dask_worker: dask_worker.http_server.port).values()]
    answers = [httpx.get(f"http://127.0.0.1:{page}", timeout=PATIENCE).status_code for page in pages]
    assert answers == [404] * 6


@pytest.mark.parametrize("kind", but_first([RanksExecutor], [GraphExecutor]))
def test_a_private_cluster_gives_the_same_bits(equal, private, kind) -> None:
    """Ranks on one machine talk to themselves: nothing goes over a network."""
    assert private.scheduler.address.startswith("tls://")
    run = equal(kind(private), 3, **SMALL)
    assert run.round(-1).commit.executor == kind.__name__.removesuffix("Executor").lower()


@pytest.mark.thorough
def test_a_local_cluster_is_encrypted_where_the_settings_of_dask_require_it() -> None:
    with dask.config.set({"distributed.comm.require-encryption": True}), connect(None, 1) as client:
        assert client.scheduler.address.startswith("tls://")
        assert client.submit(int, "7").result() == 7


def test_local_clusters_at_once_leave_the_settings_of_dask_as_they_were(fresh, caplog) -> None:
    """Whichever of them ends first."""

    def settings() -> tuple[int, int]:
        return dask.config.get("distributed.scheduler.allowed-failures"), logging.getLogger("distributed").level

    caplog.set_level(logging.WARNING, "distributed")
    with dask.config.set({"distributed.scheduler.allowed-failures": 7}):
        first, second = fresh.local_cluster(1), fresh.local_cluster(1)
        first.__enter__()
        with second:
            first.__exit__(None, None, None)
            assert settings() == (5, logging.CRITICAL)
        assert settings() == (7, logging.WARNING)
