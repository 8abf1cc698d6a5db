"""The order of a partition's examples: each once a pass, and groups one after the other."""

from __future__ import annotations

from itertools import groupby

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from roundweave.tasks.data.examples import grouped_passes, passes

GROUPS = st.lists(st.integers(0, 6), min_size=1, max_size=40).map(lambda groups: np.array(groups) * 5)
SIZES, SEEDS = st.integers(1, 45), st.integers(0, 3)


@given(st.integers(1, 40), SIZES, st.integers(1, 3), SEEDS)
def test_each_row_comes_once_a_pass(examples: int, size: int, count: int, seed: int) -> None:
    steps = count * -(-examples // size)
    found = [order.tolist() for order in passes(examples, size, steps, seed)]
    assert [sorted(order) for order in found] == [list(range(examples))] * count


@given(GROUPS, SIZES, st.integers(1, 3), SEEDS)
def test_each_row_of_groups_comes_once_a_pass_and_groups_are_not_mixed(groups, size, count, seed) -> None:
    found = [*grouped_passes(groups, size, count * -(-len(groups) // size), seed, len(groups))]
    assert len(found) == count
    for order in found:
        assert sorted(order.tolist()) == list(range(len(groups)))
        assert len([group for group, _ in groupby(groups[order])]) == len(np.unique(groups))


@given(GROUPS, st.integers(1, 39), st.integers(1, 99), SEEDS)
def test_the_last_pass_ends_with_the_last_step(groups, size, steps, seed) -> None:
    each = min(size, len(groups))
    for orders in (passes(len(groups), each, steps, seed), grouped_passes(groups, size, steps, seed, len(groups))):
        batches = sum(-(-len(order) // each) for order in orders)
        assert batches == steps


def test_the_seed_draws_the_order_of_groups_and_that_within_them() -> None:
    groups = np.repeat(np.arange(8), 8)
    orders = [next(grouped_passes(groups, 4, 16, seed, 64)) for seed in (0, 0, 1)]
    assert orders[0].tolist() == orders[1].tolist() != orders[2].tolist()
    first, other = (groups[order][::8].tolist() for order in orders[1:])
    assert first != other, "of the groups"
    assert first != sorted(first)
    within = [order[groups[order] == 3].tolist() for order in orders]
    assert within[0] != sorted(within[0])


def test_a_batch_of_all_examples_has_them_in_order() -> None:
    assert [order.tolist() for order in passes(3, None, 2, 0)] == [[0, 1, 2]] * 2
