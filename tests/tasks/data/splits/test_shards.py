"""A few labels in each partition."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import DataError, UsageError
from tasks.data.splits.deals import Pool
from tasks.data.splits.split import Split


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


@pytest.mark.parametrize("text", ["0", "-2", "1.5", "two"])
def test_other_numbers_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"split shards:{text}: '{text}' is no whole number above 0"):
        Split(2, f"shards:{text}")
