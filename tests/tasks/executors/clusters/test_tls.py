"""A cluster that speaks TLS, by certificates of one's own: it is joined as Dask is configured to."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import dask
import psutil
import pytest

from roundweave.storage.errors import ClusterError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters import connecting
from roundweave.tasks.executors.clusters.certificates import AUTHORITY, CERTIFICATE, KEY, write_certificates
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import on_scheduler
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import AutoExecutor, RanksExecutor
from tests.rows import but_first
from tests.tasks.executors.deeds import bare, executors

FIELDS = {"partitions": 4, "rounds": 3, "local_steps": 2}


@pytest.fixture(scope="module")
def certificate(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """All processes find one certificate by variables of their environment; here they hold, too."""
    [folder] = write_certificates(tmp_path_factory.mktemp("certificate"), ["all"])
    files = {"KEY": folder / KEY, "CERT": folder / CERTIFICATE}
    variables = {f"{who}__{what}": f for who in ("SCHEDULER", "WORKER", "CLIENT") for what, f in files.items()}
    variables = {f"TLS__{name}": str(file) for name, file in variables.items()}
    variables |= {"TLS__CA_FILE": str(folder / AUTHORITY), "DEFAULT_SCHEME": "tls"}
    settings = {f"distributed.comm.{k.replace('__', '.').lower()}": value for k, value in variables.items()}
    with pytest.MonkeyPatch.context() as patch, dask.config.set(settings):
        for name, value in variables.items():
            patch.setenv(f"DASK_DISTRIBUTED__COMM__{name}", value)
        yield


@pytest.mark.thorough
def test_a_run_has_the_bits_of_any_other(equal, certificate, tmp_path: Path) -> None:
    """On workers at two addresses; their ranks are on one machine, which they do not leave."""
    with bare(tmp_path, host="127.0.0.1", protocol="tls://") as cluster, connect(cluster.address, 2) as client:
        for host in ("127.0.0.1", "127.0.0.2"):
            cluster.begin("--host", host, "--protocol", "tls")
        assert client.scheduler.address.startswith("tls://")
        assert {*executors(equal(GraphExecutor(client), 3, **FIELDS))} == {"graph"}


def test_ranks_on_two_machines_are_refused_unless_they_may_be_overheard(train, monkeypatch) -> None:
    """Nor are they chosen. Workers of an encrypted cluster say that they are on machines of their own."""
    with connect(None, 2, private=True) as client:
        places = {worker: (f"machine {number}", 1) for number, worker in enumerate(client.nthreads())}
        monkeypatch.setattr("roundweave.tasks.executors.ranks.processes", lambda client: places)
        with pytest.raises(ClusterError, match="ranks on several machines do not; give --executor graph, or"):
            train(RanksExecutor(client), 3, **FIELDS, name="refused")
        chosen = train(AutoExecutor(client), 3, **FIELDS, name="chosen")
        plain = train(RanksExecutor(client, Setting(plain_ranks=True)), 3, **FIELDS, name="plain")
    assert ({*executors(chosen)}, {*executors(plain)}) == ({"graph"}, {"ranks"})


@pytest.mark.thorough
def test_a_scheduler_that_is_slow_is_not_gone(certificate, dask_processes, tmp_path: Path, monkeypatch) -> None:
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


@pytest.mark.dear("two workers that import torch")
@pytest.mark.parametrize("kind", but_first([GraphExecutor], [RanksExecutor]))
@pytest.mark.parametrize("more", but_first([{"deadline": 60}], [{"algorithm": "fed_buff"}, {}]))
def test_a_run_whose_scheduler_is_killed_ends_with_a_line(
    train, fields, do, dask_processes, tmp_path: Path, monkeypatch, kind, more
) -> None:
    monkeypatch.setattr(connecting, "CONNECT_SECONDS", 1)
    gone = pytest.raises(ClusterError, match=r"^the Dask scheduler is gone")
    with gone, connect(dask_processes(tmp_path, 2), 2) as client:
        do(f"os.kill({on_scheduler(client, os.getpid)}, signal.SIGKILL); time.sleep(60)", 1)
        train(kind(client), 4, **fields | more, name="there")
