"""A split deals all examples, each to one partition, as seed and number alone decide, or says what it lacks.

A split of another kind gets a row in `KINDS`.
"""

from __future__ import annotations

from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.storage.errors import DataError, UsageError
from roundweave.tasks.data.splits.deals import SPLITS, Pool
from roundweave.tasks.data.splits.split import Split

KINDS = [
    *("iid", "contiguous", "dirichlet:0.01", "dirichlet:0.3", "dirichlet:100", "dirichlet_by_class:1"),
    *("shards:1", "shards:3", "sizes:power", "sizes:0.2", "sizes:6", "by:place", "largest:place"),
    "proportions:7,1,2,5,1,0.5",
]


def split_of(partitions: int, kind: str, seed: int = 0, **more: int) -> Split:
    """The split, of which proportions are those of so many partitions."""
    if kind.startswith("proportions"):
        kind = ",".join(kind.split(",")[:partitions])
    return Split(partitions, kind, seed, **more)


@st.composite
def pools(draw) -> tuple[Pool, int]:
    """A pool of numbered rows with labels and places, and as many partitions as places."""
    partitions = draw(st.integers(1, 6))
    count = draw(st.integers(3 * partitions, 90))
    labels = draw(st.lists(st.integers(0, 4), min_size=count, max_size=count))
    places = np.arange(count) % partitions
    return Pool(np.arange(count) * 7 + 2, np.array(labels), {"place": places}), partitions


def dealt(split: Split, pool: Pool, number: int) -> list[list[int]]:
    return [part.tolist() for part in split.rows(pool, number)]


def test_each_split_of_the_table_is_tried_here_and_says_what_it_is() -> None:
    assert {kind.partition(":")[0] for kind in KINDS} == set(SPLITS)
    assert all(entry.about and "\n" not in entry.about for entry in SPLITS.values())


@pytest.mark.parametrize("kind", KINDS)
class TestSplit:
    @given(drawn=pools(), seed=st.integers(0, 5), numbers=st.lists(st.integers(0, 3), min_size=1, max_size=4))
    @settings(max_examples=8)
    def test_it_deals_each_example_once_whatever_was_split_before(self, kind, drawn, seed, numbers) -> None:
        pool, partitions = drawn
        split = split_of(partitions, kind, seed)
        for number in numbers:
            parts = dealt(split, pool, number)
            assert len(parts) == partitions
            assert all(parts)
            assert sorted(chain.from_iterable(parts)) == pool.rows.tolist()
            assert parts == dealt(split_of(partitions, kind, seed), pool, number)

    def test_it_is_new_with_seed_and_number_where_it_is_random_and_else_never(self, kind: str) -> None:
        pool = Pool(np.arange(80), np.arange(80) % 5, {"place": np.arange(80) % 4})
        draws = [(0, 0), (1, 0), (0, 1), (0, 2)]
        random = split_of(4, kind).deal.random
        different = {str(dealt(split_of(4, kind, seed), pool, number)) for seed, number in draws}
        assert len(different) == (4 if random else 1)
        if random:
            split = split_of(4, kind, resplit_every=3)
            assert [split.number(round) for round in range(1, 8)] == [0, 0, 0, 1, 1, 1, 2]
        else:
            with pytest.raises(UsageError, match=r"resplit_every needs a random split, and .* is always the same"):
                split_of(4, kind, resplit_every=3)

    def test_what_it_needs_is_refused_where_it_is_missing(self, kind: str) -> None:
        split, pool = split_of(4, kind), Pool(np.arange(80))
        if split.deal.labelled:
            with pytest.raises(DataError, match=f"split {kind} needs class labels, and the targets are none"):
                split.rows(pool, 0)
        elif split.deal.column:
            with pytest.raises(DataError, match=f"split {kind}: the data has no column 'place'; it has none"):
                split.taking_part(pool)
        else:
            assert sum(map(len, split.rows(pool, 0))) == 80
        with pytest.raises(DataError, match="4 partitions need at least as many examples, and there are 3"):
            split.rows(Pool(np.arange(3)), 0)
