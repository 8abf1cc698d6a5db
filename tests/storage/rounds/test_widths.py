"""Chunks of numbers of fewer partitions than a run has."""

from __future__ import annotations

import numpy as np
import pytest

from storage.parsing import MOST_TOLD
from storage.rounds.widths import as_stored, narrow, widened


@pytest.mark.parametrize("width", [1, 2, 3, MOST_TOLD + 1, 2 * MOST_TOLD + 3])
def test_what_is_written_in_parts_is_what_a_whole_chunk_would_be(width) -> None:
    chunk = np.arange(4.0).reshape(2, 2)
    parts = list(as_stored(chunk, width))
    np.testing.assert_array_equal(np.concatenate(parts, axis=None), widened(chunk, width).ravel())
    assert max(part.size for part in parts) <= MOST_TOLD


def test_a_chunk_without_partitions_is_written_as_it_is() -> None:
    (part,) = as_stored(np.arange(3.0), 7)
    assert part.tolist() == [0.0, 1.0, 2.0]


def test_partitions_of_which_nothing_is_told_are_left_out_and_come_back() -> None:
    told = np.array([[np.nan, 1.0], [np.nan, np.nan]])
    np.testing.assert_array_equal(narrow(widened(told, 5)), told)
    assert narrow(np.full((2, 3), np.nan)).shape == (2, 0)
