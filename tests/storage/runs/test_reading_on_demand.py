"""Variables that are read when they are used, and what they need of xarray."""

from __future__ import annotations

import importlib

import numpy as np
import pytest
import xarray as xr

from roundweave.storage.runs.arrays import lazy_variable

NEEDED = ("ExplicitIndexer", "IndexingSupport", "LazilyIndexedArray", "explicit_indexing_adapter")


@pytest.mark.parametrize("name", NEEDED)
def test_what_is_not_public_of_xarray_is_there(name: str) -> None:
    indexing = importlib.import_module("xarray.core.indexing")
    assert hasattr(indexing, name), (
        f"xarray {xr.__version__} has no xarray.core.indexing.{name} any more, "
        "which storage/runs/arrays.py needs: see its guide to backends for what has come in its place"
    )


def test_values_are_read_when_they_are_used_and_no_others() -> None:
    asked: list[tuple[int, int]] = []

    def read(row: int, partition: int) -> np.ndarray:
        asked.append((row, partition))
        return np.array([row, partition, 7.0])

    variable = lazy_variable((4, 5, 3), ("round", "partition", "x"), "float64", 2, read)
    part = variable[1:4:2, [0, 4]][:, :, 1:]
    assert (asked, part.shape) == ([], (2, 2, 2))
    np.testing.assert_array_equal(part, [[[0, 7], [4, 7]], [[0, 7], [4, 7]]])
    assert asked == [(1, 0), (1, 4), (3, 0), (3, 4)]
