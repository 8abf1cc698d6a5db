"""Each reduce is a value that makes one update of many, whoever joined them, and changes none of them."""

from __future__ import annotations

import pickle
from dataclasses import replace
from functools import cache

import pytest
import torch

from roundweave import Algorithm, Matched, Partitions, Reduce, Split, Update
from roundweave.storage.errors import RoundFailed, UsageError
from roundweave.storage.values.digests import update_digest
from roundweave.tasks.algorithms.reduces.mean import Fair, Normalised, Worst
from roundweave.tasks.algorithms.reduces.regmean import RegMean
from roundweave.tasks.algorithms.reduces.table import REDUCES, find_reduce
from roundweave.tasks.algorithms.reduces.tree import cover, fold, fold_updates, reduce_all
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.data.sources.images import Digits
from roundweave.tasks.networks.objective import ModelSpec, Objective

SIZE = 7
OBJECTIVE = Objective(ModelSpec("mlp", (1, 8, 8), 10, "float32", 0, '{"hidden": 4}'), "cross_entropy")
STATE = OBJECTIVE.initial()
PARTITIONS = Partitions(Digits(), Split(SIZE))
ARGUMENTS = {"clipped_mean": ":1e6", "trimmed_mean": ":1", "krum": ":1", "bulyan": ":1"}
TABLE = [name + ARGUMENTS.get(name, "") for name in REDUCES]
NEEDS = {"trimmed_mean:1": 3, "krum:1": 5, "bulyan:1": 7}
OF_ALGORITHMS = [Normalised(), Normalised(weighted=False), Fair(q=0.0), Worst()]
"""Those without a name of their own: an algorithm of the table brings each."""


@cache
def bound(named: str | Reduce) -> Algorithm:
    """An algorithm with this reduce, as a run of seven partitions has it."""
    algorithm = build_algorithm(
        "fed_avg", {"local_steps": 2}, {"reduce": named if isinstance(named, str) else None}
    )
    algorithm = algorithm if isinstance(named, str) else replace(algorithm, reduce=named)
    return algorithm.bound(OBJECTIVE, PARTITIONS)


@cache
def mapped() -> tuple[Update, ...]:
    """The updates of all partitions, with extras, and with what some reduces go by."""
    algorithm, found = bound("regmean"), list[Update]()
    for partition in range(SIZE):
        examples = PARTITIONS.load(0, partition).first(40 + partition)
        update = algorithm.map(OBJECTIVE, STATE, examples, {}, partition)
        told = {"walked": 1.0 + partition, "start_loss": 2.0, "rate": 0.1, "log_weight": partition / 3}
        found.append(replace(update, extras={"control": update.direction}, metrics=update.metrics | told))
    return tuple(found)


@pytest.fixture(params=[*TABLE, *OF_ALGORITHMS], ids=str)
def named(request: pytest.FixtureRequest) -> str | Reduce:
    """One row for each reduce: its name with its arguments, or its value."""
    return request.param


class TestReduce:
    def test_it_is_a_value_that_prints_itself(self, named) -> None:
        reduce = find_reduce(named) if isinstance(named, str) else named
        assert pickle.loads(pickle.dumps(reduce)) == reduce
        assert repr(reduce).startswith(f"{type(reduce).__name__}(")

    def test_the_updates_stay_as_they_were(self, named) -> None:
        updates = mapped()
        before = pickle.dumps(updates)
        reduce_all(bound(named).reduce, STATE, updates)
        assert pickle.dumps(updates) == before

    def test_the_result_is_shaped_as_each_update_and_counts_them(self, named) -> None:
        updates = mapped()
        found = reduce_all(bound(named).reduce, STATE, updates)
        shapes = [
            {k: (v.shape, v.dtype) for k, v in vectors.items()}
            for update in (found, updates[0])
            for vectors in (update.direction, *update.extras.values())
        ]
        assert shapes[:2] == shapes[2:]
        assert found.extras.keys() == {"control"}
        weighted = getattr(bound(named).reduce, "weighted", True)
        assert (found.count, found.weight) == (SIZE, sum(u.weight for u in updates) if weighted else SIZE)

    def test_whoever_joins_which_updates_the_bits_are_the_same(self, named) -> None:
        """The blocks 0 to 1, 2, and 3 to 6 compute the nodes of the tree that lie within them."""
        reduce, updates = bound(named).reduce, dict(enumerate(mapped()))
        nodes = {
            node: fold_updates(reduce, node, {p: updates[p] for p in range(*node)})
            for span in ((0, 2), (2, 3), (3, SIZE))
            for node in cover(0, SIZE, *span)
        }
        found = reduce.finish(STATE, fold(reduce, (0, SIZE), lambda first, last: nodes[first, last]))
        wanted = replace(reduce_all(reduce, STATE, list(updates.values())), count=found.count)
        assert update_digest(found) == update_digest(wanted)
        assert found.weight == wanted.weight

    def test_of_equal_updates_it_is_that_update(self, named) -> None:
        one = mapped()[0]
        found = reduce_all(bound(named).reduce, STATE, [one] * SIZE)
        for vectors in (found.direction, found.extras["control"]):
            torch.testing.assert_close(vectors["float32"], one.direction["float32"], rtol=1e-3, atol=1e-6)

    def test_fewer_updates_than_it_needs_are_refused_by_number(self, named) -> None:
        """A round's that are accepted, and those that a round can have."""
        reduce, updates = bound(named).reduce, mapped()
        needs = NEEDS.get(named, 1)
        assert reduce.needs == needs
        assert reduce_all(reduce, STATE, updates[:needs]).count == needs
        if needs > 1:
            with pytest.raises(RoundFailed, match=f"^round 1: .*needs {needs} updates, {needs - 1} were accepted"):
                reduce_all(reduce, STATE, updates[: needs - 1])
            with pytest.raises(UsageError, match=f"needs {needs} updates, and a round has {needs - 1}; use more"):
                bound(named).bound(OBJECTIVE, Partitions(Digits(), Split(needs - 1)))


@pytest.mark.parametrize("named", ["mean", "plain_mean", "clipped_mean:1e6", "median", "matched", "regmean"])
def test_a_lone_update_passes_with_its_bits(named: str) -> None:
    lone = mapped()[3]
    found = reduce_all(bound(named).reduce, STATE, [lone])
    assert torch.equal(found.direction["float32"], lone.direction["float32"])
    assert found.weight == lone.weight


@pytest.mark.parametrize("reduce", [Matched(), RegMean()], ids=str)
def test_one_that_must_know_the_network_says_so(reduce: Reduce) -> None:
    with pytest.raises(UsageError, match="must be bound"):
        reduce_all(reduce, STATE, mapped())
