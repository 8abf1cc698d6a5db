"""Partitions of unequal sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import UsageError
from tasks.data.splits.deals import Pool, Proportions, Sizes
from tasks.data.splits.split import Split


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


@pytest.mark.parametrize("text", ["3,0", "3,-1", "3,", "3,one", "3;1", "3,nan", "3,inf"])
def test_other_proportions_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=r"split proportions:.*: '.*' is no number above 0"):
        Split(2, f"proportions:{text}")


@pytest.mark.parametrize("partitions", [1, 3])
def test_a_number_is_needed_for_each_partition(partitions: int) -> None:
    says = f"split proportions:3,1 is for 2 partitions, and there are {partitions}; give a number for each"
    with pytest.raises(UsageError, match=says):
        Split(partitions, "proportions:3,1")


@pytest.mark.parametrize("text", ["0", "-1", "big"])
def test_other_exponents_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"split sizes:{text}: '{text}' is no number above 0"):
        Split(2, f"sizes:{text}")
