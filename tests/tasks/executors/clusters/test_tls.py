"""A cluster that speaks TLS, by certificates of one's own: it is joined as Dask is configured to."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import psutil
import pytest
from distributed import Client, LocalCluster

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters import connecting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import on_scheduler
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.patience import PATIENCE

FIELDS = {"partitions": 4, "rounds": 3, "local_steps": 2}


@pytest.fixture
def certificate(tmp_path: Path, monkeypatch) -> Iterator[dict[str, str]]:
    """The variables by which all processes find one certificate; here they hold, too."""
    files = {"key": tmp_path / "key.pem", "cert": tmp_path / "certificate.pem"}
    line = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=roundweave"]
    asked = [*line, "-keyout", files["key"], "-out", files["cert"]]
    subprocess.run(asked, check=True, capture_output=True)
    variables = {"DASK_DISTRIBUTED__COMM__TLS__CA_FILE": str(files["cert"])}
    variables |= {"DASK_DISTRIBUTED__COMM__DEFAULT_SCHEME": "tls"}
    for who in ("SCHEDULER", "WORKER", "CLIENT"):
        for what, file in files.items():
            variables[f"DASK_DISTRIBUTED__COMM__TLS__{who}__{what.upper()}"] = str(file)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    settings = {name.removeprefix("DASK_").replace("__", ".").lower(): value for name, value in variables.items()}
    with dask.config.set(settings):
        yield variables


@pytest.fixture
def two_hosts(certificate, tmp_path: Path) -> Iterator[str]:
    """The address of a scheduler with a worker each at two addresses, as on two machines."""
    place = {"host": "127.0.0.1", "protocol": "tls://", "dashboard_address": ":0", "silence_logs": "CRITICAL"}
    with LocalCluster(n_workers=0, **place) as local:
        workers = []
        for host in ("127.0.0.1", "127.0.0.2"):
            line = [sys.executable, "-m", "dask", "worker", local.scheduler_address, "--no-nanny"]
            line += ["--nthreads", "1", "--host", host, "--protocol", "tls", "--local-directory", str(tmp_path)]
            workers.append(subprocess.Popen(line, stderr=subprocess.DEVNULL))
        try:
            with Client(local.scheduler_address, set_as_default=False) as client:
                client.wait_for_workers(2, timeout=PATIENCE)
            yield local.scheduler_address
        finally:
            for worker in workers:
                worker.kill()
                worker.wait()


def test_a_run_has_the_bits_of_any_other(train, certificate, dask_processes, tmp_path: Path) -> None:
    """Ranks on one machine talk to themselves: nothing goes over a network."""
    reference = train(**FIELDS, name="reference")
    with connect(dask_processes(tmp_path), 2) as client:
        client.wait_for_workers(2, timeout=PATIENCE)
        assert client.scheduler.address.startswith("tls://")
        runs = [train(kind(client), 3, **FIELDS, name=kind.__name__) for kind in (GraphExecutor, RanksExecutor)]
    for run, executor in zip(runs, ("graph", "ranks"), strict=True):
        assert {run.round(number).commit.executor for number in (1, 2, 3)} == {executor}
        assert run.digest == reference.digest


def test_a_scheduler_that_is_slow_to_take_a_connection_is_not_gone(
    certificate, dask_processes, tmp_path: Path, monkeypatch
) -> None:
    """It stands still for longer than the first connection may take, and two ask it at once."""
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 1)
    with connect(dask_processes(tmp_path), 2) as client, ThreadPoolExecutor(2) as pool:
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
    with connect(dask_processes(tmp_path), 2) as client:
        psutil.Process(on_scheduler(client, os.getpid)).kill()
        for _ in range(3):
            with pytest.raises(ClusterError, match="the Dask scheduler is gone"):
                on_scheduler(client, os.getpid)


def test_ranks_on_two_machines_are_refused_unless_they_may_be_overheard(train, two_hosts) -> None:
    reference = train(**FIELDS, name="reference")
    with connect(two_hosts, 2) as client:
        refused = pytest.raises(ClusterError, match="ranks on several machines do not; give --executor graph, or")
        with refused:
            train(RanksExecutor(client), 3, **FIELDS, name="refused")
        chosen = train(AutoExecutor(client), 3, **FIELDS, name="chosen")
        assert {chosen.round(number).commit.executor for number in (1, 2, 3)} == {"graph"}
        plain = train(RanksExecutor(client, Setting(plain_ranks=True)), 3, **FIELDS, name="plain")
        assert {plain.round(number).commit.executor for number in (1, 2, 3)} == {"ranks"}
    assert reference.digest == chosen.digest == plain.digest
