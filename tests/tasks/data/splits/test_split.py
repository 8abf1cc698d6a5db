"""Splits of each kind, by hand and by the distributions that they draw from."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import DataError
from roundweave.tasks.data.splits.deals import Pool, Proportions, Sizes
from roundweave.tasks.data.splits.split import Split

ROLES = np.array(["b", "c", "a", "c", "d", "c", "a"])


def pool(values: np.ndarray = ROLES) -> Pool:
    return Pool(np.arange(10, 10 + len(values)), None, {"role": values, "other": values})


def rows(kind: str, partitions: int, of: Pool) -> list[list[int]]:
    return [part.tolist() for part in Split(partitions, kind).rows(of, 0)]


def test_each_value_is_a_partition() -> None:
    assert rows("by:role", 4, pool()) == [[12, 16], [10], [11, 13, 15], [14]]
    assert rows("by:role", 2, pool(np.array([5, -3, 5]))) == [[11], [10, 12]]


def test_the_values_with_the_most_examples_take_part_and_ties_go_by_value() -> None:
    split = Split(3, "largest:role")
    used = split.taking_part(pool())
    assert used.tolist() == [10, 11, 12, 13, 15, 16]
    assert rows("largest:role", 3, pool().take(used - 10)) == [[12, 16], [10], [11, 13, 15]]
    assert Split(4, "by:role").taking_part(pool()).tolist() == list(range(10, 17))


@pytest.mark.parametrize(
    ("partitions", "kind", "says"),
    [
        (3, "by:role", "split by role: there are 4 values and 3 partitions; use 4 partitions, or largest:role"),
        (5, "by:role", "split by role: there are 4 values and 5 partitions; use 4 partitions, or largest:role"),
        (5, "largest:role", "split largest:role: there are 4 values and 5 partitions; use 4 partitions"),
        (4, "by:rol", "split by:rol: the data has no column 'rol'; it has role, other"),
        (4, "shards:2", "split shards:2: 4 partitions need at least 8 examples, and there are 7"),
        (5, "dirichlet_by_class:0.001", "some of 5 partitions always had fewer than 1 examples; use a larger"),
    ],
)
def test_what_cannot_be_dealt_is_said(partitions: int, kind: str, says: str) -> None:
    of = Pool(np.arange(7), np.zeros(7, int), {"role": ROLES, "other": ROLES})
    with pytest.raises(DataError, match=says):
        Split(partitions, kind).rows(of.take(Split(partitions, kind).taking_part(of)), 0)


def test_shards_by_hand() -> None:
    """Rows 0 to 5 with labels 2 1 0 2 1 0 are 2 5 1 4 0 3 when sorted: the shards of two are the labels' rows."""
    pool = Pool(np.arange(6), np.array([2, 1, 0, 2, 1, 0]))
    dealt = [part.tolist() for part in Split(3, "shards:1", seed=1).rows(pool, 0)]
    assert sorted(dealt) == [[0, 3], [1, 4], [2, 5]]
    orders = {str([part.tolist() for part in Split(3, "shards:1", seed).rows(pool, 0)]) for seed in range(60)}
    assert len(orders) == 6, "every order of dealing is drawn"


@given(st.integers(1, 30), st.integers(0, 70), st.sampled_from(["iid", "contiguous"]))
@settings(max_examples=25)
def test_sizes_differ_by_one_at_most_and_a_contiguous_split_keeps_the_order(partitions, more, kind) -> None:
    parts = Split(partitions, kind).rows(Pool(np.arange(partitions + more)), 0)
    assert max(map(len, parts)) - min(map(len, parts)) <= 1
    if kind == "contiguous":
        assert np.concatenate(parts).tolist() == list(range(partitions + more))


def test_sizes_by_hand() -> None:
    """14 examples, 3 partitions: one each, and 11 in shares of 6 : 3 : 2. Of 10: 60/11, 30/11, 20/11."""
    assert Sizes(1).counts(14, 3).tolist() == [1 + 6, 1 + 3, 1 + 2]
    assert Sizes(1).counts(13, 3).tolist() == [1 + 5, 1 + 3, 1 + 2]
    assert Sizes(2).counts(52, 3).tolist() == [1 + 36, 1 + 9, 1 + 4]
    assert [len(part) for part in Split(3, "sizes:power").rows(Pool(np.arange(14)), 0)] == [7, 4, 3]


def test_proportions_by_hand() -> None:
    """12 examples as 3 : 1 : 1 are 7.2, 2.4, 2.4, and the largest remainders come first."""
    assert Proportions((3, 1, 1)).counts(10, 3).tolist() == [6, 2, 2]
    assert Proportions((3, 1, 1)).counts(12, 3).tolist() == [7, 3, 2]
    assert Proportions((0.6, 0.2, 0.2)).counts(13, 3).tolist() == [8, 3, 2]
    assert [len(part) for part in Split(3, "proportions:3,1,1").rows(Pool(np.arange(10)), 0)] == [6, 2, 2]


def test_none_is_empty_and_the_largest_gives() -> None:
    assert Proportions((1, 1000, 1, 500)).counts(9, 4).tolist() == [1, 4, 1, 3]
    assert Proportions((1e-300, 1e300)).counts(2, 2).tolist() == [1, 1]


WEIGHTS = st.lists(st.floats(0, exclude_min=True, allow_infinity=False), min_size=1, max_size=30)


@given(WEIGHTS, st.integers(0, 1000))
@settings(max_examples=25)
def test_sizes_in_proportions_make_up_all_examples_in_the_order_of_the_weights(weights, more: int) -> None:
    counts = Proportions(tuple(weights)).counts(len(weights) + more, len(weights))
    assert counts.sum() == len(weights) + more
    assert counts.min() >= 1
    # The one that gives to the empty may have been as large as the next.
    assert (np.diff(counts[np.argsort(weights)]) >= -1).all()


LABELS = np.arange(6000) % 10


def shares(alpha: float, labels: np.ndarray = LABELS, partitions: int = 12, seed: int = 0) -> np.ndarray:
    """The share of each label in each partition."""
    parts = Split(partitions, f"dirichlet:{alpha}", seed).rows(Pool(np.arange(len(labels)), labels), 0)
    return np.array([np.bincount(labels[part], minlength=10) / len(part) for part in parts])


@pytest.mark.parametrize("kind", ["dirichlet", "dirichlet_by_class"])
def test_any_huge_alpha_gives_the_limit_of_large_ones(kind) -> None:
    pool = Pool(np.arange(6000), LABELS)
    huge, large = (Split(4, f"{kind}:{alpha}", 1).rows(pool, 0) for alpha in ("1.7e308", "1e300"))
    for some, others in zip(huge, large, strict=True):
        assert np.array_equal(some, others)


def test_partitions_are_of_one_size() -> None:
    parts = Split(7, "dirichlet:0.1").rows(Pool(np.arange(6000), LABELS), 0)
    assert [len(part) for part in parts] == [6000 * (i + 1) // 7 - 6000 * i // 7 for i in range(7)]


def test_a_large_alpha_gives_the_proportions_of_all() -> None:
    labels = np.repeat(np.arange(3), [3000, 2000, 1000])
    assert np.abs(shares(1e9, labels)[:, :3] - [1 / 2, 1 / 3, 1 / 6]).max() < 0.1


def test_a_small_alpha_gives_one_label() -> None:
    first = shares(1e-6)[:10]
    assert np.mean(first.max(1) > 0.99) > 0.5


def test_proportions_spread_as_the_distribution_says() -> None:
    """The variance of a Dirichlet(alpha p) share is p (1 - p) / (alpha + 1): 0.09 / 3 for alpha 2.

    Only the first partition is drawn with all labels left; 400 seeds give its variance within a few percent, and
    multinomial noise of 500 draws adds p (1 - p) / 500 and less.
    """
    found = np.array([shares(2.0, seed=seed)[0] for seed in range(400)])
    assert found.var(0).mean() == pytest.approx(0.09 / 3, rel=0.15)
    assert found.mean(0) == pytest.approx(0.1, abs=0.04)


# Each class dealt over the partitions.


def dealt(alpha: float, labels: np.ndarray = LABELS, partitions: int = 4, seed: int = 0) -> np.ndarray:
    """How many examples of each label each partition has."""
    parts = Split(partitions, f"dirichlet_by_class:{alpha}", seed).rows(Pool(np.arange(len(labels)), labels), 0)
    return np.array([np.bincount(labels[part], minlength=10) for part in parts])


def test_classes_are_dealt_in_shares_of_their_own_and_sizes_differ() -> None:
    """A share of Dirichlet(alpha, alpha, ...) over n partitions has variance (n - 1) / (n^2 (n alpha + 1))."""
    first = np.array([dealt(0.5, seed=seed)[:, 0] / 600 for seed in range(400)])
    assert first.mean(0) == pytest.approx(0.25, abs=0.04)
    assert first.var(0).mean() == pytest.approx(3 / (16 * (4 * 0.5 + 1)), rel=0.15)
    assert np.ptp(dealt(0.5).sum(1)) > 600


def test_who_has_an_even_share_gets_no_more() -> None:
    """Of two partitions and two classes the greater part of the first class is all that a partition gets."""
    labels = np.repeat([0, 1], 300)
    for seed in range(20):
        counts = dealt(0.05, labels, 2, seed)[:, :2]
        if counts[:, 0].max() == 300:
            assert counts[counts[:, 0].argmax(), 1] == 0


@pytest.mark.parametrize(("partitions", "least"), [(4, 10), (300, 10), (600, 5)])
def test_no_partition_is_left_without_examples(partitions: int, least: int) -> None:
    assert dealt(2.0, partitions=partitions).sum(1).min() >= least


def test_shards_of_one_size_hold_one_label_each() -> None:
    """100 examples of each of 10 labels in 10 x 2 shards of 50: no shard has two labels."""
    labels = np.arange(1000) % 10
    parts = Split(10, "shards:2", seed=3).rows(Pool(np.arange(1000), labels), 0)
    for part in parts:
        counts = np.bincount(labels[part])
        assert sorted(counts[counts > 0].tolist()) in ([50, 50], [100])
