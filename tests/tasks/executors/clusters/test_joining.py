"""A worker that joins from another machine: what it offers, and that it is back whatever goes away."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest
from distributed import Client, LocalCluster

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.joining import Telling, memory_of
from roundweave.tasks.executors.graph import GraphExecutor
from tests.joined import Start, processes, scheduler, until, worker
from tests.patience import PATIENCE
from tests.storage.places.s3_server import free_port
from tests.tasks.executors.deeds import PLACE


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with processes(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def head() -> Iterator[str]:
    """The address of a scheduler that stays."""
    with LocalCluster(n_workers=0, **PLACE) as local:
        yield local.scheduler_address


@pytest.fixture
def client(head: str) -> Iterator[Client]:
    with Client(head, timeout=PATIENCE, set_as_default=False) as client:
        yield client


def offered(dask_worker: Any) -> tuple[dict[str, int], int, int, int]:
    """What a worker offers, its threads and memory, and its process."""
    state = dask_worker.state
    return state.total_resources, state.nthreads, dask_worker.memory_manager.memory_limit, os.getpid()


@pytest.mark.thorough
def test_a_worker_offers_its_site_tells_of_its_maps_is_replaced_and_leaves_no_process(
    start: Start, head: str, client: Client, train
) -> None:
    joined = worker(start, head, "--site", "berlin", "--memory-limit", "1GB", "--host", "127.0.0.2")
    joined.says("joined")
    [(address, (*offer, process))] = client.run(offered).items()
    assert address.startswith("tcp://127.0.0.2:")
    assert offer == [{"site-berlin": 1}, 1, 10**9]
    assert joined.lines == [f"joined {head} as {address}: site berlin, one thread, 1.0 GB at most"]
    os.kill(process, signal.SIGKILL)
    until(lambda: client.nthreads().keys() - {address} != set())
    assert [resources for resources, *_ in client.run(offered).values()] == [{"site-berlin": 1}]
    fields = {"partitions": 2, "rounds": 2, "local_steps": 2}
    with connect(head, 1) as run_client:
        run = train(GraphExecutor(run_client), 2, **fields, name="there")
    assert run.digest == train(**fields, name="inline").digest
    for number in (1, 2):
        joined.says(f"round {number}, block 0: done in ")
    below = joined.workers
    assert joined.ended() == 0
    assert below and not any(map(psutil.Process.is_running, below))
    until(lambda: not client.nthreads())


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_it_waits_for_its_scheduler_and_joins_again_one_that_was_killed_or_ended(start: Start, number) -> None:
    port = free_port()
    joined = worker(start, f"tcp://127.0.0.1:{port}")
    running = scheduler(start, port)
    joined.says(f"joined tcp://127.0.0.1:{port} as ")
    running.ended(number)
    joined.says("is gone; joining again")
    scheduler(start, port)
    joined.says(f"joined tcp://127.0.0.1:{port} as ", 2)
    assert joined.ended(signal.SIGINT, group=True) == 0
    lines = [line for line in joined.lines if "cannot be joined" not in line]
    assert [line.split()[0] for line in lines] == ["joined", "the", "joined"]


@pytest.mark.thorough
def test_a_host_of_another_machine_is_one_line(start: Start, head: str) -> None:
    joined = worker(start, head, "--host", "192.0.2.1")
    joined.says(f"{head} cannot be joined (OSError: ")
    time.sleep(4)  # more attempts, of which each has the same reason
    assert joined.ended() == 0
    [line] = joined.lines
    assert "Cannot assign requested address" in line


@pytest.mark.thorough
def test_a_scheduler_of_another_dask_is_one_line(start: Start, tmp_path: Path) -> None:
    other = tmp_path / "other.py"
    other.write_text("import distributed.versions\ndistributed.versions._version_cached = lambda name: '2020.1'\n")
    port = free_port()
    scheduler(start, port, None, "--preload", str(other))
    refused = worker(start, f"tcp://127.0.0.1:{port}")
    assert refused.process.wait(timeout=PATIENCE) == 1
    [line] = refused.lines
    assert line.startswith(f"error: tcp://127.0.0.1:{port} has dask 2020.1, and here it is ")
    assert line.endswith("; install the same version on both machines")


def test_it_tells_how_maps_and_pushes_end_and_of_no_other_task(capsys) -> None:
    telling = Telling()
    telling.setup(None)
    for key in (("map", "run", 3, 1), ("maps", "run", 7, (2, 3)), ("score", "run", 3, 1), "other"):
        for start, finish in (("ready", "executing"), ("executing", "error" if "maps" in key else "memory")):
            telling.transition(key, start, finish)
    lines = [line[9:].split(" in ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["round 3, block 1: done", "map 7, partition 2 to 3: failed"]


def test_a_limit_of_memory_is_a_size_or_a_fraction() -> None:
    assert memory_of("512MiB") == 1 << 29
    assert memory_of("0.5") == memory_of("1.0") // 2
