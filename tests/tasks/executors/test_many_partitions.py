"""Runs of many partitions, whose updates share files, have the bits of runs with a file for each."""

from __future__ import annotations

import pytest
from distributed import Client

import roundweave as rw
from roundweave.flows.config.resolving import resolve
from roundweave.flows.preparing.job import prepared
from roundweave.flows.stored import Run, open_run
from roundweave.storage.errors import ClusterError
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.keep import Keep
from roundweave.storage.upkeep.pruning import prune_run
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.tasks.executors.deeds import KILL, identities, second

FIELDS = {"data": "digits", "model": "logistic", "algorithm": "scaffold", "local_steps": 1, "rounds": 3}


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each partition has a file of its own."""
    monkeypatch.setattr(Schema, "sharded", lambda schema, processes=1, updates=0: schema)


def files(run: Run, round: int) -> int:
    return len(list(run.path.glob(f"updates/float32/c/{round}/*/0")))


@pytest.mark.parametrize(
    ("parts", "partitions", "shard"),
    [
        ({}, 40, 2),
        second({"algorithm": "fed_avg", "stacked": 7}, 100, 5),
    ],
)
def test_every_executor_gives_the_bits_of_a_file_for_each(
    train, client: Client, monkeypatch, parts, partitions, shard
) -> None:
    fields = FIELDS | parts | {"partitions": partitions}
    runs = [train(**fields, name="inline")]
    runs += [train(kind(client), 2, **fields, name=kind.__name__) for kind in (GraphExecutor, RanksExecutor)]
    alone(monkeypatch)
    reference = train(**fields, name="reference")
    assert (reference._store.schema.shard, files(reference, 2)) == (1, partitions)
    for run in runs:
        assert (run._store.schema.shard, files(run, 2)) == (shard, partitions // shard)
        assert identities(run) == identities(reference)
        assert verify(run.path).sound


@pytest.mark.thorough
def test_a_run_resumed_by_others_goes_on_in_the_same_files(train, client: Client) -> None:
    fields = FIELDS | {"partitions": 40}
    reference = train(**fields, name="reference")
    train(**fields | {"rounds": 1}, name="resumed")
    train(GraphExecutor(client), **fields | {"rounds": 2}, name="resumed")
    train(RanksExecutor(client), **fields, name="resumed")
    resumed = open_run("resumed")
    assert identities(resumed) == identities(reference)
    assert verify(resumed.path).sound


@pytest.mark.thorough
def test_rounds_are_replayed_reduced_again_forked_and_pruned(train) -> None:
    run = train(**FIELDS, partitions=40, name="run", keep="updates:3")
    assert run.replay("all").identical
    again = run.recombine(2, save="again")
    assert again.rounds[0].identical
    saved = rw.open_run("again")
    assert verify(saved.path).sound
    assert saved.round(0).commit.tensors == run.round(2).commit.tensors
    store = RoundStore(run.path)
    prune_run(store, Keep.of("last:1"))
    assert [files(run, round) for round in (1, 2, 3)] == [0, 0, 20]
    assert verify(run.path).sound
    config, executor = rw.fork("run@3", rounds=1, name="fork", executor="inline"), InlineExecutor()
    with prepared(resolve(config), executor) as ready:
        list(executor.run(ready.job, 1, 1))
    fork = open_run("fork")
    assert (files(fork, 0), fork.round(0).commit.carry_from) == (20, dict.fromkeys(range(40), 0))
    assert verify(fork.path).sound


@pytest.mark.thorough
def test_a_killed_worker_costs_no_bit(equal, client: Client, fields, do) -> None:
    do(KILL, 39, 1)
    run = equal(GraphExecutor(client), 3, **fields | {"partitions": 40, "rounds": 3})
    assert verify(run.path).sound


@pytest.mark.thorough
def test_of_a_deadly_partition_the_shard_is_named(train, client: Client, fields, do) -> None:
    do(KILL, 13, 1, always=True)
    with pytest.raises(ClusterError, match="workers died at partition 12 to 13"):
        train(GraphExecutor(client), **fields | {"partitions": 40}, name="there")
