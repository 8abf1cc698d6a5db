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
from distributed import Client

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.joining import Telling, memory_of
from roundweave.tasks.executors.graph import GraphExecutor
from tests.joined import Start, processes, scheduler, until, worker
from tests.patience import PATIENCE
from tests.storage.places.s3_server import free_port


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Start]:
    with processes(tmp_path) as start:
        yield start


@pytest.fixture(scope="module")
def head(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of a scheduler that stays."""
    port = free_port()
    with processes(tmp_path_factory.mktemp("head")) as start:
        scheduler(start, port)
        yield f"tcp://127.0.0.1:{port}"


@pytest.fixture
def client(head: str) -> Iterator[Client]:
    with Client(head, timeout=PATIENCE, set_as_default=False) as client:
        yield client


def offered(dask_worker: Any) -> dict[str, Any]:
    """What a worker offers, and its process."""
    return {
        "resources": dask_worker.state.total_resources,
        "threads": dask_worker.state.nthreads,
        "memory": dask_worker.memory_manager.memory_limit,
        "process": os.getpid(),
    }


def test_a_worker_offers_its_site_tells_of_its_maps_and_a_killed_one_is_replaced(
    start: Start, head: str, client: Client, train
) -> None:
    joined = worker(start, head, "--site", "berlin", "--memory-limit", "1GB", "--host", "127.0.0.2")
    joined.says("joined")
    [(address, offer)] = client.run(offered).items()
    assert address.startswith("tcp://127.0.0.2:")
    assert (offer["resources"], offer["threads"], offer["memory"]) == ({"site-berlin": 1}, 1, 10**9)
    assert joined.lines == [f"joined {head} as {address}: site berlin, one thread, 1.0 GB at most"]
    os.kill(offer["process"], signal.SIGKILL)
    until(lambda: client.nthreads().keys() - {address} != set())
    assert [again["resources"] for again in client.run(offered).values()] == [{"site-berlin": 1}]
    fields = {"partitions": 2, "rounds": 2, "local_steps": 2}
    with connect(head, 1) as run_client:
        run = train(GraphExecutor(run_client), 2, **fields, name="there")
    assert run.digest == train(**fields, name="inline").digest
    for number in (1, 2):
        joined.says(f"round {number}, block 0: done in ")
    assert joined.ended() == 0


def test_two_workers_of_a_site_on_one_machine_end_in_order_and_leave_no_process(
    start: Start, head: str, client: Client
) -> None:
    joined = [worker(start, head, "--site", "paris") for _ in range(2)]
    for each in joined:
        each.says("joined")
    assert [offer["resources"] for offer in client.run(offered).values()] == [{"site-paris": 1}] * 2
    below = [process for each in joined for process in each.workers]
    assert len(below) == 2
    codes = [joined[0].ended(signal.SIGINT, group=True), joined[1].ended(signal.SIGTERM)]
    assert codes == [0, 0]
    assert [len(each.lines) for each in joined] == [1, 1], "nothing but that they joined"
    assert not any(map(psutil.Process.is_running, below))
    until(lambda: not client.nthreads())


def test_it_waits_for_its_scheduler_and_joins_again_one_that_was_killed_or_ended(start: Start) -> None:
    port = free_port()
    joined = worker(start, f"tcp://127.0.0.1:{port}")
    for times, number in enumerate((signal.SIGKILL, signal.SIGTERM), 1):
        running = scheduler(start, port)
        joined.says(f"joined tcp://127.0.0.1:{port} as ", times)
        running.ended(number)
        joined.says("is gone; joining again", times)
    assert joined.ended(signal.SIGINT) == 0
    lines = [line for line in joined.lines if "cannot be joined" not in line]
    assert [line.split()[0] for line in lines] == ["joined", "the", "joined", "the"]


def test_a_host_of_another_machine_is_one_line(start: Start, head: str) -> None:
    joined = worker(start, head, "--host", "192.0.2.1")
    joined.says(f"{head} cannot be joined (OSError: ")
    time.sleep(4)  # more attempts
    assert joined.ended() == 0
    [line] = joined.lines
    assert "Cannot assign requested address" in line


@pytest.mark.slow
def test_each_reason_why_nobody_answers_is_said_once(start: Start) -> None:
    address = f"tcp://127.0.0.1:{free_port()}"
    joined = worker(start, address)
    joined.says(f"{address} cannot be joined (")
    time.sleep(15)  # more attempts
    assert joined.ended() == 0
    assert len(joined.lines) == len(set(joined.lines))


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
    for key in (("map", "run", 3, 1), ("pushes", "run", 7, (2, 3)), ("score", "run", 3, 1), "other"):
        for start, finish in (("ready", "executing"), ("executing", "error" if "pushes" in key else "memory")):
            telling.transition(key, start, finish)
    lines = [line[9:].split(" in ")[0] for line in capsys.readouterr().out.splitlines()]
    assert lines == ["round 3, block 1: done", "push 7, partition 2 to 3: failed"]


def test_a_limit_of_memory_is_a_size_or_a_fraction() -> None:
    assert memory_of("512MiB") == 1 << 29
    assert memory_of("0.5") == memory_of("1.0") // 2
