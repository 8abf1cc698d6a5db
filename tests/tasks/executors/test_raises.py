"""Maps that raise: once more elsewhere, then refused by name, with the same bits on every executor."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from distributed import Client

import roundweave as rw
from roundweave.flows.stored import Run
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.workers import processes
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

HOT = "raise ValueError('too hot in process ' + str(os.getpid()))"


def slow(*values: str) -> list[object]:
    return [pytest.param(value, marks=pytest.mark.slow) for value in values]


@pytest.fixture
def fields(fields) -> dict[str, object]:
    return fields | {"rounds": 6, "momentum": 0.5}


@pytest.fixture
def raising(do) -> Callable[..., None]:
    """Have something done in each map of some partitions."""

    def write(deed: str, *partitions: int) -> None:
        for partition in partitions:
            do(deed, partition, always=True)

    return write


def executor(kind: str, client: Client) -> Executor:
    if kind == "inline":
        return InlineExecutor()
    return GraphExecutor(client) if kind == "graph" else RanksExecutor(client)


def refused(run: Run) -> dict[int, list[int]]:
    return {n: sorted(run.round(n).refused) for n in range(1, run.done + 1) if run.round(n).refused}


@pytest.mark.parametrize("kind", ["inline", "graph", "ranks"])
def test_a_partition_that_raises_is_refused_by_name_and_the_others_go_on(
    train, client, fields, raising, tmp_path, kind
) -> None:
    raising(HOT, 2)
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
            (tmp_path / "do-2-0-always").unlink()
        stored = rw.open_run(run.path)
        for placed in ({}, {"executor": "graph", "scheduler": address})[: 2 if kind == "graph" else 1]:
            replay = stored.replay("all", **placed)
            assert replay.identical
            assert len(replay.replayed) == 6
            assert "not mapped again: partition 2 in round 1 to 6, as it had raised" in str(replay)


@pytest.mark.parametrize("kind", ["graph", "ranks", "graph, all others busy"])
def test_what_raises_on_one_worker_alone_is_mapped_on_another(train, client, fields, raising, kind) -> None:
    wanted = train(**fields, name="wanted")
    [_, pid], *others = sorted(processes(client).values())
    kind, _, busy = kind.partition(",")
    if busy:
        at = [address for address, process in processes(client).items() if process in others]
        sleeping = client.submit(time.sleep, 3.0, workers=at, pure=False)
    raising(f"if os.getpid() == {pid}: raise ValueError('here alone')", 0, 1, 2, 3)
    run = train(executor(kind, client), 3, **fields, name="run")
    assert refused(run) == {}
    assert run.digest == wanted.digest
    assert not busy or sleeping.done()


def test_the_first_map_of_new_workers_may_raise(train, fields, raising) -> None:
    """The other rank must notice that this one has gone, whatever its first map had torch import."""
    raising(HOT, 2)
    with connect(None, 2) as client:
        run = train(RanksExecutor(client), 3, **fields, name="run")
    assert refused(run) == {round: [2] for round in range(1, 7)}


def test_ranks_go_on_once_no_map_raises(train, client, fields, raising) -> None:
    fields |= {"rounds": 20}
    records = "Path(__file__).with_name('runs') / 'run.zarr/commits'"
    between = f"({records} / '3.json').exists() and not ({records} / '7.json').exists()"
    raising(f"if {between}: {HOT}", 1)
    run = train(RanksExecutor(client), 3, **fields, name="run")
    # Maps go on beside the commits: when they see one is open.
    assert refused(run)
    assert all(3 < round < 12 and partitions == [1] for round, partitions in refused(run).items())
    assert {run.round(n).commit.executor for n in refused(run)} == {"graph"}
    assert {run.round(n).commit.executor for n in (1, 2, 3, 20)} == {"ranks"}
    assert rw.open_run(run.path).replay("all").identical


@pytest.mark.parametrize("kind", ["inline", "graph", "ranks"])
def test_where_all_raise_or_too_many_the_run_ends_with_the_line(train, client, fields, raising, kind) -> None:
    raising(HOT, 0, 1, 2, 3)
    line = r"round 1: 0 of 4 updates are sound, 1 needed; partition \d: its map failed with ValueError: too hot .*"
    with pytest.raises(RoundFailed, match=line):
        train(executor(kind, client), 3, **fields, name="all")
    raising("", 0, 1, 2)
    with pytest.raises(
        RoundFailed, match="round 1: 3 of 4 updates are sound, 4 needed; partition 3: its map failed"
    ):
        train(executor(kind, client), 3, **fields, quorum=4, name="quorum")


@pytest.mark.parametrize("algorithm", [*slow("async_sgd", "fed_buff"), "downpour"])
def test_a_server_refuses_who_raises_and_goes_on(train, client, fields, raising, algorithm) -> None:
    own = {name: fields[name] for name in ("data", "model", "partitions", "held_out")}
    own |= {"algorithm": algorithm, "rounds": 40}
    raising(HOT, 2)
    run = train(GraphExecutor(client), 20, **own, name="run")
    assert {p for partitions in refused(run).values() for p in partitions} == {2}
    assert {p for n in range(1, 41) for p in run.round(n).commit.accepted} <= {0, 1, 3}
    again = train(**own, order="recorded:run", name="again")
    assert rw.diff(run.path, again.path).equal
    raising("", 2)
    for name in ("run", "again"):
        assert rw.open_run(name).replay("all").identical


def test_what_raises_at_a_server_on_one_worker_alone_is_mapped_on_another(train, client, fields, raising) -> None:
    own = {name: fields[name] for name in ("data", "model", "partitions", "held_out")} | {"algorithm": "async_sgd"}
    _, pid = sorted(processes(client).values())[0]
    raising(f"if os.getpid() == {pid}: raise ValueError('here alone')", 0, 1, 2, 3)
    run = train(GraphExecutor(client), 20, **own, rounds=20, name="run")
    assert refused(run) == {}
    raising("", 0, 1, 2, 3)
    assert rw.open_run("run").replay("all").identical


FAILS_LATE = """
import time
from dataclasses import dataclass
import torch.distributed as dist
import roundweave as rw
from roundweave.tasks.executors import rank_task

rank_task.TELLING_MS = 60_000  # the first rank tells of its rounds only once it ends

@dataclass(frozen=True)
class Late(rw.Sgd):
    def __call__(self, state, update):
        if state.round == 12:
            time.sleep(0.5 * (dist.get_rank() == SLOWER))
            raise ValueError("too late")
        return super().__call__(state, update)

def algorithm():
    return rw.Algorithm(rw.Gradient(batch_size=5), rw.Mean(), Late(lr=0.1))
"""


@pytest.mark.parametrize("slower", [0, 1])
def test_all_rounds_before_an_error_are_told_of(train, own, slower) -> None:
    """The first rank tells of several rounds at once, and another one may end with the error before it has."""
    told: list[int] = []
    fields = {
        "algorithm": f"{own(f'SLOWER = {slower}{FAILS_LATE}')}:algorithm",
        "data": "digits",
        "model": "logistic",
        "rounds": 20,
    }
    wanted = r"^round 13: the reduce or apply failed with ValueError: too late"
    with connect(None, 2) as client, pytest.raises(RoundFailed, match=wanted):
        train(RanksExecutor(client), 20, lambda commit: told.append(commit.round), **fields, name="run")
    assert told == list(range(1, 13))
