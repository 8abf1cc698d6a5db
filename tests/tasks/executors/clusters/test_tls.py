"""A cluster that speaks TLS, by certificates of one's own: it is joined as Dask is configured to."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters import connecting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import on_scheduler
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.tasks.executors.deeds import bare, executors, second

FIELDS = {"partitions": 4, "rounds": 3, "local_steps": 2}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All processes find one certificate by variables of their environment; here they hold, too."""
    folder = tmp_path_factory.mktemp("certificate")
    files = {"key": folder / "key.pem", "cert": folder / "certificate.pem"}
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=roundweave"]
    asked = [*line, "-keyout", files["key"], "-out", files["cert"]]
    subprocess.run(asked, check=True, capture_output=True)
    variables = {"CA_FILE": files["cert"]}
    variables |= {
        f"{who}__{what.upper()}": files[what] for who in ("SCHEDULER", "WORKER", "CLIENT") for what in files
    }
    variables = {f"DASK_DISTRIBUTED__COMM__TLS__{name}": str(file) for name, file in variables.items()}
    variables |= {"DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": "tls"}
    settings = {name.removeprefix("DASK_").replace("__", ".").lower(): value for name, value in variables.items()}
    with pytest.MonkeyPatch.context() as patch, dask.config.set(settings):
        for name, value in variables.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def two_hosts(certificate, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Client]:
    """A scheduler with a worker each at two addresses, as on two machines."""
    with bare(tmp_path_factory.mktemp("hosts"), host="127.0.0.1", protocol="tls://") as cluster:
        for host in ("127.0.0.1", "127.0.0.2"):
            cluster.begin("--host", host, "--protocol", "tls")
        with connect(cluster.address, 2) as client:
            yield client


@pytest.mark.parametrize(
    ("make", "by"),
    [
        second(GraphExecutor, "graph"),
        (AutoExecutor, "graph"),  # it chooses what is encrypted
        second(lambda client: RanksExecutor(client, Setting(plain_ranks=True)), "ranks"),
    ],
    ids=["graph", "auto", "plain-ranks"],
)
def test_a_run_has_the_bits_of_any_other(equal, two_hosts, make, by) -> None:
    """Ranks on several machines are only chosen where they may be overheard."""
    assert two_hosts.scheduler.address.startswith("tls://")
    assert {*executors(equal(make(two_hosts), 3, **FIELDS))} == {by}


def test_ranks_on_two_machines_are_refused_unless_they_may_be_overheard(train, two_hosts) -> None:
    says = "ranks on several machines do not; give --executor graph, or"
    with pytest.raises(ClusterError, match=says):
        train(RanksExecutor(two_hosts), 3, **FIELDS, name="refused")


def test_a_scheduler_that_is_slow_to_take_a_connection_is_not_gone(
    certificate, dask_processes, tmp_path: Path, monkeypatch
) -> None:
    """It stands still for longer than the first connection may take, and two ask it at once."""
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 1)
    with connect(dask_processes(tmp_path, 0), 2) as client, ThreadPoolExecutor(2) as pool:
        scheduler = psutil.Process(on_scheduler(client, os.getpid))
        scheduler.suspend()
        answers = [pool.submit(on_scheduler, client, os.getpid) for _ in range(2)]
        time.sleep(3)
        assert not any(answer.done() for answer in answers)
        scheduler.resume()
        assert [answer.result() for answer in answers] == [scheduler.pid] * 2


def test_a_scheduler_that_was_killed_is_gone(dask_processes, tmp_path: Path, monkeypatch) -> None:
    """Which is noticed once the client has given up, and said again and again."""
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 1)
    with connect(dask_processes(tmp_path, 0), 2) as client:
        psutil.Process(on_scheduler(client, os.getpid)).kill()
        for _ in range(3):
            with pytest.raises(ClusterError, match="the Dask scheduler is gone"):
                on_scheduler(client, os.getpid)
