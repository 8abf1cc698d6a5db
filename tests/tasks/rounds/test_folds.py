"""Folds on the way to a reduce: of any blocks and fan-in, the bits are those of one fold of all updates."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import Algorithm, Gradient, Mean, Median, Reduce, Sgd, State, Update
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.values.tensors import same_bits
from roundweave.tasks.algorithms.reduces.tree import fold, fold_updates
from roundweave.tasks.rounds.job import RoundPlan, Work
from roundweave.tasks.rounds.steps import BlockResult, fold_block, fold_results

SIZES = st.integers(1, 60).flatmap(lambda n: st.tuples(st.just(n), st.integers(1, n)))


def updates_of(partitions: int, refused: set[int], seed: int) -> dict[int, Update | None]:
    generator = torch.Generator().manual_seed(seed)
    made = {
        p: Update(
            {"float32": torch.randn(7, generator=generator)},
            buffers={"int64": torch.tensor([p])},
            weight=1 + p % 5,
            extras={"control": {"float32": torch.randn(3, generator=generator)}},
        )
        for p in range(partitions)
    }
    return {p: None if p in refused else update for p, update in made.items()}


def work_of(reduce: Reduce, partitions: int) -> Work:
    partitions = SimpleNamespace(split=SimpleNamespace(partitions=partitions))
    return Work(None, Algorithm(Gradient(), reduce, Sgd(0.1)), partitions, 0)  # type: ignore[arg-type]


def through_folds(
    work: Work, plan: RoundPlan, fan_in: int, updates: dict[int, Update | None]
) -> list[BlockResult]:
    """What a reduce is given of updates that go through folds."""
    results = []
    for block in range(plan.blocks):
        records = {p: UpdateRecord("", 1, None if updates[p] else "refused") for p in plan.members(block)}
        results.append(BlockResult(fold_block(work, 1, plan.nodes(block), updates), records))
    for groups in plan.folds(fan_in):
        results = [fold_results(work, 1, [results[at] for at in group]) for group in groups]
    return results


@pytest.mark.parametrize("reduce", [Mean(), Median()])
@given(SIZES, st.integers(2, 9), st.sets(st.integers(0, 59)), st.integers(0, 9))
@settings(max_examples=50)
def test_folds_change_no_bit_and_lose_no_record(reduce, sizes, fan_in, refused, seed) -> None:
    plan, work = RoundPlan(*sizes), work_of(reduce, sizes[0])
    updates = updates_of(plan.partitions, refused, seed)
    results = through_folds(work, plan, fan_in, updates)
    assert len(results) <= fan_in
    assert [p for result in results for p in result.records] == list(range(plan.partitions))
    nodes = {node: value for result in results for node, value in result.nodes.items()}
    assert sorted(p for first, last in nodes for p in range(first, last)) == list(range(plan.partitions))
    root = fold(reduce, plan.root, lambda first, last: nodes[first, last])
    wanted = fold_updates(reduce, plan.root, updates)
    if wanted is None:
        assert root is None
        return
    got, wanted = (reduce.finish(State({}), node) for node in (root, wanted))
    assert got.weight == wanted.weight
    assert same_bits(got.direction["float32"], wanted.direction["float32"])
    assert same_bits(got.buffers["int64"], wanted.buffers["int64"])


@given(st.integers(1, 60), st.data())
@settings(max_examples=50)
def test_who_takes_no_part_is_an_identity_leaf(partitions: int, data) -> None:
    """Of any cohort, in any blocks, the bits are those of the tree over all, in which the others are refused."""
    cohort = tuple(sorted(data.draw(st.sets(st.integers(0, partitions - 1), min_size=1))))
    plan = RoundPlan(partitions, data.draw(st.integers(1, len(cohort))), data.draw(st.integers(1, 9)), cohort)
    updates = updates_of(partitions, set(), 0)
    wanted = fold_updates(Mean(), plan.root, {p: u if p in cohort else None for p, u in updates.items()})
    mine = {p: updates[p] for p in cohort}
    results = through_folds(work_of(Mean(), partitions), plan, data.draw(st.integers(2, 9)), mine)
    nodes = {node: value for result in results for node, value in result.nodes.items()}
    root = fold(Mean(), plan.root, lambda first, last: nodes[first, last])
    got, wanted = (Mean().finish(State({}), node) for node in (root, wanted))
    assert same_bits(got.direction["float32"], wanted.direction["float32"])
    assert tuple(p for result in results for p in result.records) == cohort


def test_a_fold_of_blocks_that_make_up_a_node_gives_one_vector() -> None:
    """64 partitions in 64 blocks: each four neighbours make up a node of the tree."""
    results = through_folds(work_of(Mean(), 64), RoundPlan(64, 64), 16, updates_of(64, set(), 0))
    assert [list(result.nodes) for result in results] == [[(0, 16)], [(16, 32)], [(32, 48)], [(48, 64)]]
