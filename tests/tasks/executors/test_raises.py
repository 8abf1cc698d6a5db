"""Maps that raise: once more elsewhere, then refused by name, with the same bits on every executor."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from distributed import Client

import roundweave as rw
from flows.stored import Run
from storage.errors import RoundFailed
from tasks.clusters.workers import processes
from tasks.executors.base import Executor
from tasks.executors.graph import GraphExecutor
from tasks.executors.inline import InlineExecutor
from tasks.executors.ranks import RanksExecutor

SOURCE = """
import os
from pathlib import Path
import torch

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(20, 3, generator=generator)
    inputs[:, 0] = partition
    return inputs, (inputs[:, 1] > 0).long()

class Network(torch.nn.Linear):
    '''Does in the map of a partition what a file says: deed-PARTITION.'''
    def __init__(self):
        super().__init__(3, 2)
    def forward(self, inputs):
        deed = Path(__file__).with_name(f"deed-{int(inputs[0, 0])}")
        if self.training and deed.exists():
            exec(deed.read_text(), {"os": os, "records": Path(__file__).parent / "runs" / "run.zarr" / "commits"})
        return super().forward(inputs)
"""
FIELDS = {"partitions": 4, "rounds": 6, "local_steps": 2, "batch_size": 5, "held_out": 0, "momentum": 0.5}
HOT = "raise ValueError('too hot in process ' + str(os.getpid()))"

Deeds = Callable[..., None]


def slow(*values: str) -> list[object]:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture
def fields(own) -> dict[str, object]:
    path = own(SOURCE)
    return FIELDS | {"data": f"{path}:data", "model": f"{path}:Network"}


@pytest.fixture
def do(tmp_path: Path) -> Deeds:
    """Have something done in the maps of some partitions."""

    def arm(deed: str, *partitions: int) -> None:
        for partition in partitions:
            (tmp_path / f"deed-{partition}").write_text(deed)

    return arm


def executor(kind: str, client: Client) -> Executor:
    if kind == "inline":
        return InlineExecutor()
    return GraphExecutor(client) if kind == "graph" else RanksExecutor(client)


def refused(run: Run) -> dict[int, list[int]]:
    return {n: sorted(run.round(n).refused) for n in range(1, run.done + 1) if run.round(n).refused}


@pytest.mark.parametrize("kind", ["inline", "graph", "ranks"])
def test_a_partition_that_raises_is_refused_by_name_and_the_others_go_on(
    train, client, fields, do, tmp_path, kind
) -> None:
    do(HOT, 2)
    wanted = train(**fields, name="wanted")
    run = train(executor(kind, client), 3, **fields, name="run")
    assert refused(run) == {round: [2] for round in range(1, 7)}
    assert run.round(6).refused[2].startswith("its map failed with ValueError: too hot in process ")
    # The words tell of a process: they are in the record, and in nothing that is compared.
    for round in range(1, 7):
        assert run.round(round).commit.identity() == wanted.round(round).commit.identity()
    assert run.digest == wanted.digest
    assert rw.diff(run.path, wanted.path).equal
    assert run.verify().sound
    address = client.scheduler.address
    for there in (True, False):
        # Whether it raises when it is replayed, or does not any more.
        if not there:
            (tmp_path / "deed-2").unlink()
        stored = rw.open_run(run.path)
        for placed in ({}, {"executor": "graph", "scheduler": address})[: 2 if kind == "graph" else 1]:
            replay = stored.replay("all", **placed)
            assert replay.identical
            assert len(replay.replayed) == 6
            assert "not mapped again: partition 2 in round 1 to 6, as it had raised" in str(replay)


@pytest.mark.parametrize("kind", ["graph", "ranks"])
def test_what_raises_on_one_worker_alone_is_mapped_on_another(train, client, fields, do, kind) -> None:
    wanted = train(**fields, name="wanted")
    _, pid = sorted(processes(client).values())[0]
    do(f"if os.getpid() == {pid}: raise ValueError('here alone')", 0, 1, 2, 3)
    run = train(executor(kind, client), 3, **fields, name="run")
    assert refused(run) == {}
    assert run.digest == wanted.digest


def test_ranks_go_on_once_no_map_raises(train, client, fields, do) -> None:
    fields |= {"rounds": 20}
    do("if (records / '3.json').exists() and not (records / '7.json').exists(): " + HOT, 1)
    run = train(RanksExecutor(client), 3, **fields, name="run")
    # Maps go on beside the commits: when they see one is open.
    assert refused(run)
    assert all(3 < round < 12 and partitions == [1] for round, partitions in refused(run).items())
    assert {run.round(n).commit.executor for n in refused(run)} == {"graph"}
    assert {run.round(n).commit.executor for n in (1, 2, 3, 20)} == {"ranks"}
    assert rw.open_run(run.path).replay("all").identical


@pytest.mark.parametrize("kind", ["inline", "graph", "ranks"])
def test_where_all_raise_or_too_many_the_run_ends_with_the_line(train, client, fields, do, kind) -> None:
    do(HOT, 0, 1, 2, 3)
    line = r"round 1: 0 of 4 updates are sound, 1 needed; partition \d: its map failed with ValueError: too hot .*"
    with pytest.raises(RoundFailed, match=line) as caught:
        train(executor(kind, client), 3, **fields, name="all")
    assert "\n" not in str(caught.value)
    do("", 0, 1, 2)
    with pytest.raises(
        RoundFailed, match="round 1: 3 of 4 updates are sound, 4 needed; partition 3: its map failed"
    ):
        train(executor(kind, client), 3, **fields, quorum=4, name="quorum")


@pytest.mark.parametrize("algorithm", [*slow("async_sgd", "fed_buff"), "downpour"])
def test_a_server_refuses_who_raises_and_goes_on(train, client, fields, do, algorithm) -> None:
    own = {name: fields[name] for name in ("data", "model", "partitions", "held_out")}
    own |= {"algorithm": algorithm, "rounds": 40}
    do(HOT, 2)
    run = train(GraphExecutor(client), 20, **own, name="run")
    assert {p for partitions in refused(run).values() for p in partitions} == {2}
    assert {p for n in range(1, 41) for p in run.round(n).commit.accepted} <= {0, 1, 3}
    again = train(**own, order="recorded:run", name="again")
    assert rw.diff(run.path, again.path).equal
    do("", 2)
    for name in ("run", "again"):
        assert rw.open_run(name).replay("all").identical


def test_what_raises_at_a_server_on_one_worker_alone_is_mapped_on_another(train, client, fields, do) -> None:
    own = {name: fields[name] for name in ("data", "model", "partitions", "held_out")} | {"algorithm": "async_sgd"}
    _, pid = sorted(processes(client).values())[0]
    do(f"if os.getpid() == {pid}: raise ValueError('here alone')", 0, 1, 2, 3)
    run = train(GraphExecutor(client), 20, **own, rounds=20, name="run")
    assert refused(run) == {}
    do("", 0, 1, 2, 3)
    assert rw.open_run("run").replay("all").identical
