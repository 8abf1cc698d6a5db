"""On workers of a cluster, by tasks or by ranks that stay: carry, and classes of the user's own."""

from __future__ import annotations

import pytest
import torch

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.ranks import RanksExecutor
from tests.counting import counting
from tests.rows import but_first
from tests.tasks.executors.deeds import identities


def test_what_a_partition_carries_is_what_it_brought_back_when_it_was_last_accepted(train, own) -> None:
    run = train(**counting(own), partitions=3, rounds=5)
    for number in range(1, 6):
        round = run.round(number)
        refused = number in (2, 3)
        assert list(round.refused) == ([1] if refused else [])
        assert round.commit.carry_from == {0: number, 1: 1 if refused else number, 2: number}
        for partition in round.commit.accepted:
            counted = number - 2 if partition == 1 and number > 3 else number
            update = round.update(partition)
            assert update.carry["memory"]["float32"].tolist() == [counted] * 37
            scaled = update.extras["control"]["float32"] / counted
            assert torch.equal(update.direction["float32"], scaled)


REDUCE = """
from dataclasses import dataclass
import roundweave as rw
@dataclass(frozen=True)
class Kept:
    updates: tuple
@dataclass(frozen=True)
class First(rw.Reduce):
    def join(self, left, right):
        return Kept((*listed(left), *listed(right)))
    def finish(self, state, node):
        return listed(node)[0]
def listed(node):
    return node.updates if isinstance(node, Kept) else (node,)
def algorithm():
    return rw.Algorithm(rw.LocalSteps(local_steps=1), First(), rw.Sgd())
"""
FIELDS = {"model": "logistic", "partitions": 5, "rounds": 4}


@pytest.mark.thorough
def test_classes_of_ones_own_file_travel_to_workers(train, own, dask_processes, tmp_path) -> None:
    """The workers began elsewhere, and know of the file only by what they are sent."""
    fields = FIELDS | {"algorithm": f"{own(REDUCE)}:algorithm"}
    reference = train(**fields, name="here")
    with connect(dask_processes(tmp_path), 2) as client:
        for kind in (GraphExecutor, RanksExecutor):
            run = train(kind(client), 2, **fields, name=kind.__name__)
            assert identities(run) == identities(reference)


@pytest.mark.parametrize("kind", but_first([RanksExecutor], [GraphExecutor]))
def test_classes_of_a_notebook_travel_to_workers(equal, client, kind) -> None:
    notebook: dict[str, object] = {"__name__": "__main__"}
    exec(REDUCE, notebook)
    equal(kind(client), 2, **FIELDS, algorithm=notebook["algorithm"])
