"""The law of every split: it is a partition of its pool, decided by seed and number alone."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import DataError
from tasks.data.splits.deals import SPLITS, Pool
from tasks.data.splits.split import Split

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
