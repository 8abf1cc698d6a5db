"""Asynchronous runs on a cluster: workers race and die, and their order of arrival gives the same bits."""

from __future__ import annotations

import time
from fractions import Fraction
from types import SimpleNamespace

import pytest

import roundweave as rw
from roundweave.flows.planning.plan import plan
from roundweave.flows.plugins.parameter_server import on_dask
from roundweave.flows.plugins.parameter_server.steps import commit_server_rounds
from roundweave.flows.training.job import prepare
from roundweave.storage.errors import ClusterError, RoundFailed
from roundweave.tasks.executors.clusters import workers
from roundweave.tasks.executors.graph import GraphExecutor
from tests.flows.plugins.parameter_server.proving import RUNS, SMALL
from tests.rows import but_first
from tests.tasks.executors.deeds import KILL, until

ROUNDS = 12


@pytest.mark.parametrize(("window", "partitions"), but_first([(3, 5)], [(1, 2), (100, 1)]))
def test_windows_of_any_size_and_any_number_of_partitions(train, client, proven, window, partitions) -> None:
    """Fewer partitions than workers, as many, and more."""
    fields = SMALL | RUNS["async_sgd"] | {"partitions": partitions, "rounds": ROUNDS}
    proven(train(GraphExecutor(client), window, **fields, name="run"), **fields)


@pytest.mark.thorough
@pytest.mark.parametrize("name", ["easgd-cohort", "easgd", "fed_buff", "fed_buff-cohort"])
def test_what_was_in_hand_is_mapped_again_from_its_row(client, proven, tmp_path, name) -> None:
    """The generator is dropped within a window, by executors that know of nothing before."""
    fields = SMALL | RUNS[name] | {"partitions": 5, "rounds": ROUNDS}
    config = rw.TrainConfig(root=tmp_path / "runs", name="run", **fields)
    for stop in (2, 5, 6, ROUNDS):
        executor = GraphExecutor(client)
        with prepare(plan(config), executor) as ready:
            before = ready.store.log.read(ready.done)
            for commit in executor.run(ready.job, ready.done + 1, ROUNDS):
                for partition, update in commit.updates.items():
                    item = before.server.in_flight.get(partition) if before.server else None
                    if item:
                        assert (update.arrival.push, update.arrival.version) == (item.push, item.version)
                before = commit
                if commit.round >= stop:
                    break
    run = rw.Run(ready.store.address)
    assert run.done == ROUNDS
    proven(run, **fields)


def test_a_commit_under_way_at_an_error_is_told_of(train, client, deeds, do, monkeypatch) -> None:
    told = list[int]()
    do("raise MemoryError('none left')", 2, 2, always=True)

    def slowly(*given: object) -> object:
        time.sleep(1)
        return commit_server_rounds(*given)

    monkeypatch.setattr(on_dask, "commit_server_rounds", slowly)
    fields = deeds | RUNS["async_sgd"] | {"rounds": 100}
    with pytest.raises(RoundFailed, match="none left"):
        train(GraphExecutor(client), 50, lambda commit: told.append(commit.round), **fields, name="there")
    time.sleep(1.5)  # a commit that nobody waited for would have ended
    assert told == list(range(1, rw.open_run("there").done + 1))


def test_a_commit_that_no_worker_begins_is_dropped(client, monkeypatch) -> None:
    """As where the process that stores is away for long: a server that goes on has other pushes in its rounds."""
    monkeypatch.setattr(workers, "IDLE_LOOKS", 1)
    waiting = client.submit(int, resources={"nowhere": 1}, pure=False)
    own = {"_server": SimpleNamespace(maps={}), "_committing": waiting, "pool": SimpleNamespace(client=client)}
    with pytest.raises(workers.LostWork, match="no worker is working on it"):
        on_dask.DaskServer._settle(SimpleNamespace(**own))
    until(lambda: waiting.key not in client.run_on_scheduler(lambda dask_scheduler: [*dask_scheduler.tasks]))


KINDS = ["async_sgd", "downpour", "easgd", "fed_buff"]


@pytest.mark.parametrize("name", but_first(["fed_buff-cohort"], KINDS))
def test_killed_workers_cost_what_was_in_hand(train, client, deeds, do, proven, caplog, name) -> None:
    """And all rounds are replayed."""
    for round in (3, 9) if name in KINDS else (3,):
        do(KILL, 2, round)
    fields = deeds | RUNS[name] | {"rounds": 16}
    run = train(GraphExecutor(client), 8, **fields, name="there")
    assert run.done == 16
    assert "is lost; mapped again as number " in caplog.text
    proven(run, **fields)


@pytest.mark.thorough
def test_a_partition_that_ends_every_worker_is_named(train, client, deeds, do) -> None:
    """Whoever else had bad luck before; the others would go on for a thousand rounds."""
    do(KILL, 2, 6, always=True)
    fields = deeds | RUNS["async_sgd"] | {"rounds": 1000}
    executor = GraphExecutor(client)
    executor.pool.losses.deaths.update({0: Fraction(1), 1: Fraction(2)})
    says = r"^round \d+ was lost \d times \(workers died at partition 2: .*`roundweave resume` continues$"
    with pytest.raises(ClusterError, match=says):
        train(executor, 1000, **fields, name="there")
    assert rw.open_run("there").verify().sound
