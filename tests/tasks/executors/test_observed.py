"""What maps observe for a reduce has the same bits whoever computes it."""

from __future__ import annotations

from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor

FIELDS = {"data": "digits", "split": "shards:2", "partitions": 4, "rounds": 2, "reduce": "regmean"}
FIELDS |= {"model_options": {"hidden": 16}, "local_steps": 3}


def test_every_executor_gives_the_bits_of_solved_rounds(train, client) -> None:
    wanted = train(**FIELDS, name="near").digest
    for executor in (GraphExecutor(client), RanksExecutor(client)):
        run = train(executor, **FIELDS, name=type(executor).__name__)
        assert run.digest == wanted
        assert run.replay("all").identical
