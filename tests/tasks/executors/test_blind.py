"""Workers that do not see the runs map, too, and hand what is to be stored to others; the bits are equal."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from functools import partial
from pathlib import Path

import dask
import pytest
from distributed import Client

from roundweave.storage.errors import StoreError
from roundweave.tasks.executors.base import Setting
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.clusters.reaching import Mark
from roundweave.tasks.executors.clusters.workers import offers
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.flows.plugins.parameter_server.proving import mapped_by
from tests.machines import hidden_from
from tests.tasks.executors.deeds import MEET, Bare, bare, identities, lines

HANDS_ON = (
    r"worker tcp://\S+ does not reach the store \(\S+/runs is another folder there, or none\): others store for it"
)


@pytest.fixture
def setting(tmp_path: Path) -> Setting:
    return Setting(store=str(tmp_path / "runs"))


@pytest.fixture
def there(tmp_path: Path) -> Iterator[Bare]:
    with bare(tmp_path) as there:
        yield there


@pytest.fixture
def start(there: Bare, tmp_path: Path) -> Callable[[int, int], AbstractContextManager[Client]]:
    """Start worker processes, of which the blind ones have nothing in the folder of the runs; gives a client."""
    (tmp_path / "runs").mkdir()

    def begin(seeing: int, blind: int) -> AbstractContextManager[Client]:
        for within in [list] * seeing + [partial(hidden_from, tmp_path / "runs")] * blind:
            there.begin(within=within)
        return connect(there.address, 1)

    return begin


@pytest.fixture
def meet(fields, do) -> Callable[[str], None]:
    """Have two workers wait for each other in the first map of each: none is done before the other begins.

    Not in that of partition 0, by whose examples one worker tries the network before the rounds.
    """
    return lambda name: do(MEET.format(name=name), range(1, fields["partitions"]), always=True)


def processes(there: Bare) -> set[str]:
    return {f"{worker.pid}" for worker in there.workers}


def at_work(run) -> set[str]:
    """The process ids of the workers that mapped the rounds of a run."""
    return {worker.rpartition(":")[2] for worker in mapped_by(run)}


@pytest.mark.thorough
def test_a_worker_that_does_not_see_the_runs_maps_and_others_store_for_it(
    train, fields, setting, there, start, meet, caplog
) -> None:
    """At first it joins in mid-run, then it is there from the beginning. It is named once in each run."""
    reference = train(**fields, name="reference")

    def join(commit) -> None:
        if commit.round == 1:
            start(0, 1)

    with start(1, 0) as client:
        executor = GraphExecutor(client, setting)
        run = train(executor, 1, join, **fields, name="there")
        executor.pool.reach.end()
        assert identities(run) == identities(reference)
        for kind in (GraphExecutor, RanksExecutor):
            meet(f"met-{kind.__name__}")
            run = train(kind(client, setting), 4, **fields, name=f"there-{kind.__name__}")
            assert identities(run) == identities(reference)
            assert at_work(run) == processes(there)
        served = fields | {"algorithm": "fed_buff"}
        assert train(GraphExecutor(client, setting), 4, **served, name="there-served").done == 4
    told = lines(caplog)
    assert len(told) == 4
    assert all(re.fullmatch(HANDS_ON, line) for line in told), told


@pytest.mark.thorough
def test_where_no_worker_sees_the_runs_a_process_of_the_command_stores(
    train, fields, setting, there, start, meet, caplog
) -> None:
    reference = train(**fields, name="reference")
    meet("met")
    with start(0, 2) as client:
        executor = GraphExecutor(client, setting)
        run = train(executor, 1, **fields, name="there")
        pages = client.run(partial(dask.config.get, "distributed.worker.http.routes"))
        assert [pages[worker] for worker in {*pages} - {*offers(client)}] == [[]]
        executor.pool.reach.end()
        assert identities(run) == identities(reference)
        assert at_work(run) == processes(there)
    assert lines(caplog) == ["no worker reaches the store: a process of this machine stores for them"]


def lose_sight() -> None:
    """From now on the worker that calls this does not see the runs."""
    Mark.before, Mark.unreached = Mark.unreached, lambda self: "gone"


def see_again() -> None:
    Mark.unreached = Mark.before


@pytest.fixture
def one_blind(client: Client) -> Iterator[Client]:
    """Of two workers one sees no runs, as it says."""
    worker = min(client.nthreads())
    client.run(lose_sight, workers=[worker])
    yield client
    client.run(see_again, workers=[worker])


@pytest.mark.parametrize("kind", [GraphExecutor, RanksExecutor])
def test_others_store_for_a_worker_that_says_so(equal, one_blind, fields, setting, caplog, kind) -> None:
    executor = kind(one_blind, setting)
    equal(executor, 4, **fields)
    executor.pool.reach.end()
    (line,) = lines(caplog)
    assert re.fullmatch(r"worker tcp://\S+ does not reach the store \(gone\): others store for it", line)


@pytest.mark.thorough
def test_a_worker_that_sees_the_runs_no_more_stores_no_more(setting, there, start) -> None:
    """What failed there is done by another one, and it is only where none is left that the error stands."""
    with start(2, 1) as client:
        pool = GraphExecutor(client, setting).pool
        processes = client.run(os.getpid)
        [lost, left] = [worker for worker, process in processes.items() if process != there.workers[2].pid]
        client.run(lose_sight, workers=[lost])
        pool.reach.ask_again(StoreError("it cannot be written"))
        needs = pool.routing.needs("commit", 0)
        stored = [client.submit(os.getpid, resources=needs, pure=False) for _ in range(8)]
        assert {*client.gather(stored)} == {processes[left]}
        with pytest.raises(StoreError, match="it cannot be written"):
            pool.reach.ask_again(StoreError("it cannot be written"))
