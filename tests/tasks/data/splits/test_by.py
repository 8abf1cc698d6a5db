"""Partitions that the data have of themselves."""

from __future__ import annotations

import numpy as np
import pytest

from storage.errors import DataError
from tasks.data.splits.deals import Pool
from tasks.data.splits.split import Split

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
