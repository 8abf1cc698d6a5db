"""Runs of many partitions, whose updates share files, have the bits of runs with a file for each."""

from __future__ import annotations

import pytest
from distributed import Client

from roundweave.flows.stored import Run
from roundweave.storage.errors import ClusterError
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.rows import but_first
from tests.tasks.executors.deeds import KILL, identities

FIELDS = {"data": "digits", "model": "logistic", "algorithm": "scaffold", "local_steps": 1}


def alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on each partition has a file of its own."""
    monkeypatch.setattr(Schema, "sharded", lambda schema, processes=1, updates=0: schema)


def files(run: Run, round: int) -> int:
    return len(list(run.path.glob(f"updates/float32/c/{round}/*/0")))


STACKED = {"algorithm": "fed_avg", "stacked": 7}


@pytest.mark.parametrize(("parts", "partitions", "shard"), but_first([({}, 40, 2)], [(STACKED, 100, 5)]))
def test_every_executor_gives_the_bits_of_a_file_for_each(
    train, client: Client, monkeypatch, parts, partitions, shard
) -> None:
    fields = FIELDS | parts | {"partitions": partitions, "rounds": 2}
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
def test_of_a_deadly_partition_the_shard_is_named(train, client: Client, fields, do) -> None:
    do(KILL, 13, 1, always=True)
    with pytest.raises(ClusterError, match="workers died at partition 12 to 13"):
        train(GraphExecutor(client), **fields | {"partitions": 40}, name="there")
