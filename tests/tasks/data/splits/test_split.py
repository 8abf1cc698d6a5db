"""Splits: each is a partition of its pool, decided by seed and number alone; and each kind by hand."""

from __future__ import annotations

import re

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import DataError, UsageError
from roundweave.tasks.data.splits.deals import SPLITS, Pool, Proportions, Sizes
from roundweave.tasks.data.splits.split import Split

KINDS = [
    "iid",
    "contiguous",
    "dirichlet:0.01",
    "dirichlet:0.3",
    "dirichlet:100",
    "dirichlet_by_class:1",
    "shards:1",
    "shards:3",
]
KINDS += ["sizes:power", "sizes:0.2", "sizes:6", "by:place", "largest:place", "proportions:7,1,2,5,1,0.5"]


def split_of(partitions: int, kind: str, seed: int = 0) -> Split:
    """The split, of which proportions are those of so many partitions."""
    if kind.startswith("proportions"):
        kind = ",".join(kind.split(",")[:partitions])
    return Split(partitions, kind, seed)


@st.composite
def pools(draw) -> tuple[Pool, int]:
    """A pool of numbered rows with labels and places, and as many partitions as places."""
    partitions = draw(st.integers(1, 6))
    count = draw(st.integers(3 * partitions, 90))
    labels = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    places = np.arange(count) % partitions
    return Pool(np.arange(count) * 7 + 2, np.array(labels), {"place": places}), partitions


def test_every_split_of_the_table_is_tried_here() -> None:
    assert {kind.partition(":")[0] for kind in KINDS} == set(SPLITS)


@given(pools(), st.sampled_from(KINDS), st.integers(0, 5), st.integers(0, 3))
@settings(deadline=None, max_examples=60)
def test_a_split_is_a_partition_of_its_pool(drawn, kind: str, seed: int, number: int) -> None:
    pool, partitions = drawn
    parts = split_of(partitions, kind, seed).rows(pool, number)
    assert len(parts) == partitions
    assert all(len(part) for part in parts)
    assert sorted(np.concatenate(parts)) == pool.rows.tolist()


@given(pools(), st.sampled_from(KINDS), st.lists(st.integers(0, 3), min_size=1, max_size=4))
@settings(deadline=None, max_examples=25)
def test_a_split_does_not_depend_on_what_was_split_before(drawn, kind: str, numbers: list[int]) -> None:
    pool, partitions = drawn
    split = split_of(partitions, kind, 4)
    alone = {n: [part.tolist() for part in split_of(partitions, kind, 4).rows(pool, n)] for n in set(numbers)}
    assert [[part.tolist() for part in split.rows(pool, n)] for n in numbers] == [alone[n] for n in numbers]


@pytest.mark.parametrize("kind", KINDS)
def test_a_random_split_and_no_other_is_new_with_seed_and_number(kind: str) -> None:
    pool = Pool(np.arange(80), np.arange(80) % 5, {"place": np.arange(80) % 4})

    def dealt(seed: int, number: int) -> str:
        return str([part.tolist() for part in split_of(4, kind, seed).rows(pool, number)])

    different = {dealt(0, 0), dealt(1, 0), dealt(0, 1), dealt(0, 2)}
    assert len(different) == (4 if split_of(4, kind).deal.random else 1)


@pytest.mark.parametrize("kind", KINDS)
def test_what_a_split_needs_is_refused_where_it_is_missing(kind: str) -> None:
    split = split_of(4, kind)
    pool = Pool(np.arange(80))
    if split.deal.labelled:
        with pytest.raises(DataError, match=f"split {kind} needs class labels, and the targets are none"):
            split.rows(pool, 0)
    elif split.deal.column:
        with pytest.raises(DataError, match=f"split {kind}: the data has no column 'place'; it has none"):
            split.taking_part(pool)
    else:
        assert sum(map(len, split.rows(pool, 0))) == 80


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


@pytest.mark.parametrize("partitions", [3, 5])
def test_another_number_of_values_is_told(partitions: int) -> None:
    says = f"split by role: there are 4 values and {partitions} partitions; use 4 partitions, or largest:role"
    with pytest.raises(DataError, match=says):
        rows("by:role", partitions, pool())


def test_fewer_values_than_partitions_are_told() -> None:
    with pytest.raises(
        DataError, match="split largest:role: there are 4 values and 5 partitions; use 4 partitions"
    ):
        Split(5, "largest:role").taking_part(pool())


def test_an_unknown_column_is_told() -> None:
    with pytest.raises(DataError, match="split by:rol: the data has no column 'rol'; it has role, other"):
        rows("by:rol", 4, pool())


def test_shards_by_hand() -> None:
    """Rows 0 to 5 with labels 2 1 0 2 1 0 are 2 5 1 4 0 3 when sorted: the shards of two are the labels' rows."""
    pool = Pool(np.arange(6), np.array([2, 1, 0, 2, 1, 0]))
    dealt = [part.tolist() for part in Split(3, "shards:1", seed=1).rows(pool, 0)]
    assert sorted(dealt) == [[0, 3], [1, 4], [2, 5]]
    orders = {str([part.tolist() for part in Split(3, "shards:1", seed).rows(pool, 0)]) for seed in range(60)}
    assert len(orders) == 6, "every order of dealing is drawn"


def test_shards_of_one_size_hold_one_label_each() -> None:
    """100 examples of each of 10 labels in 10 x 2 shards of 50: no shard has two labels."""
    labels = np.arange(1000) % 10
    parts = Split(10, "shards:2", seed=3).rows(Pool(np.arange(1000), labels), 0)
    for part in parts:
        counts = np.bincount(labels[part])
        assert sorted(counts[counts > 0].tolist()) in ([50, 50], [100])


def test_too_few_examples_are_refused() -> None:
    with pytest.raises(DataError, match="split shards:2: 4 partitions need at least 8 examples, and there are 7"):
        Split(4, "shards:2").rows(Pool(np.arange(7), np.zeros(7, int)), 0)


@pytest.mark.parametrize(
    ("kind", "says"),
    [
        ("odd", "unknown split 'odd'; there are iid, contiguous"),
        ("contigous", "did you mean contiguous?"),
        ("iid:3", "split 'iid:3' must be written iid"),
        ("proportions:3", "split proportions:3 is for 1 partitions, and there are 2; give a number for each"),
        (
            "proportions:3,1,2",
            "split proportions:3,1,2 is for 3 partitions, and there are 2; give a number for each",
        ),
        *((text, f"split '{text}' must be written by:COLUMN") for text in ("by", "by:")),
        *((text, f"split '{text}' must be written largest:COLUMN") for text in ("largest", "largest:")),
        ("shards:", "split 'shards:' must be written shards:SHARDS"),
        ("shards:0", "split 'shards:0' must be written shards:SHARDS: Input should be greater than 0"),
        *((f"shards:{text}", "must be written shards:SHARDS: Input should be") for text in ("-2", "1.5", "two")),
        *((f"sizes:{text}", "must be written sizes:EXPONENT: Input should be") for text in ("0", "-1", "big")),
        *(
            (f"proportions:{text}", "must be written proportions:NUMBERS: Input should be")
            for text in ("3,0", "3,-1", "3,", "3,one", "3,nan", "3,inf", "3;1")
        ),
        *(
            (f"{kind}:{text}", f"split '{kind}:{text}' must be written {kind}:ALPHA: Input should be")
            for kind in ("dirichlet", "dirichlet_by_class")
            for text in ("0", "-1", "x", "nan", "inf")
        ),
    ],
)
def test_other_texts_are_one_clear_line(kind: str, says: str) -> None:
    with pytest.raises(UsageError, match=re.escape(says)):
        Split(2, kind)


def test_every_split_says_what_it_is() -> None:
    assert all(entry.about and "\n" not in entry.about for entry in SPLITS.values())


def test_only_a_random_split_can_be_drawn_again() -> None:
    assert Split(2, "iid", resplit_every=3).deal.random
    with pytest.raises(UsageError, match="resplit_every needs a random split, and contiguous is always the same"):
        Split(2, "contiguous", resplit_every=3)


def test_sizes_by_hand() -> None:
    """14 examples, 3 partitions: one each, and 11 in shares of 6 : 3 : 2. Of 10: 60/11, 30/11, 20/11."""
    assert Sizes(1).counts(14, 3).tolist() == [1 + 6, 1 + 3, 1 + 2]
    assert Sizes(1).counts(13, 3).tolist() == [1 + 5, 1 + 3, 1 + 2]
    assert Sizes(2).counts(52, 3).tolist() == [1 + 36, 1 + 9, 1 + 4]
    assert [len(part) for part in Split(3, "sizes:power").rows(Pool(np.arange(14)), 0)] == [7, 4, 3]


@given(st.integers(1, 40), st.integers(0, 400), st.floats(0.01, 20))
@settings(deadline=None, max_examples=25)
def test_sizes_fall_and_none_is_empty(partitions: int, more: int, exponent: float) -> None:
    counts = Sizes(exponent).counts(partitions + more, partitions)
    assert counts.sum() == partitions + more
    assert counts.min() >= 1
    assert (np.diff(counts) <= 0).all()


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
@settings(deadline=None, max_examples=25)
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


def test_a_large_alpha_deals_each_class_evenly() -> None:
    assert np.abs(dealt(1e9) - 150).max() <= 1


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


def test_what_no_draw_can_give_is_said() -> None:
    with pytest.raises(DataError, match="some of 500 partitions always had fewer than 6 examples; use a larger"):
        dealt(0.001, partitions=500)
