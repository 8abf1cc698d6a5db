"""Partitions of unequal sizes."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import UsageError
from tasks.data.splits import Pool, Split
from tasks.data.splits.sizes import Sizes


def test_sizes_by_hand() -> None:
    """14 examples, 3 partitions: one each, and 11 in shares of 6 : 3 : 2. Of 10: 60/11, 30/11, 20/11."""
    assert Sizes(1).counts(14, 3).tolist() == [1 + 6, 1 + 3, 1 + 2]
    assert Sizes(1).counts(13, 3).tolist() == [1 + 5, 1 + 3, 1 + 2]
    assert Sizes(2).counts(52, 3).tolist() == [1 + 36, 1 + 9, 1 + 4]
    assert [len(part) for part in Split(3, "sizes:power").rows(Pool(np.arange(14)), 0)] == [7, 4, 3]


@given(st.integers(1, 40), st.integers(0, 400), st.floats(0.01, 20))
@settings(deadline=None)
def test_sizes_fall_and_none_is_empty(partitions: int, more: int, exponent: float) -> None:
    counts = Sizes(exponent).counts(partitions + more, partitions)
    assert counts.sum() == partitions + more
    assert counts.min() >= 1
    assert (np.diff(counts) <= 0).all()


@pytest.mark.parametrize("text", ["0", "-1", "big"])
def test_other_exponents_are_refused(text: str) -> None:
    with pytest.raises(UsageError, match=f"split sizes:{text}: '{text}' is no number above 0"):
        Split(2, f"sizes:{text}")
