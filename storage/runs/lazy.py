"""Variables of xarray whose values are read when they are used: all that is taken from within xarray."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import numpy as np
import xarray as xr
from xarray.backends import BackendArray

# Not public, though xarray's guide to backends imports it: seen in xarray 2025.9 to 2026.9.0.
from xarray.core import indexing


class StoredRows(BackendArray):
    """An array as xarray asks for it, of which `read` gives the values at a place of its first `axes` axes."""

    def __init__(
        self, shape: tuple[int, ...], dtype: np.dtype, axes: int, read: Callable[..., np.ndarray]
    ) -> None:
        self.shape = shape
        self.dtype = dtype
        self._axes = axes
        self._read = read

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """The values of an index, verified; raises `StoreDamaged`."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._values)

    def _values(self, key: tuple[Any, ...]) -> np.ndarray:
        """The values of an index for each axis, each of which counts on its own."""
        places = [np.arange(size)[part] for size, part in zip(self.shape, key[: self._axes], strict=False)]
        sizes = tuple(place.size for place in places)
        values = np.empty((*sizes, *self.shape[self._axes :]), self.dtype)
        for number in np.ndindex(sizes):
            values[number] = self._read(*(int(p.reshape(-1)[n]) for p, n in zip(places, number, strict=True)))
        for axis in reversed(range(self._axes, len(key))):
            values = values[(slice(None),) * axis + (key[axis],)]
        return values.squeeze(tuple(axis for axis, place in enumerate(places) if not place.ndim))


def lazy_variable(
    shape: tuple[int, ...], dims: Iterable[str], dtype: str, axes: int, read: Callable[..., np.ndarray]
) -> xr.Variable:
    """A variable whose values `read` gives at a place of the first `axes` axes; bfloat16 is shown as float32."""
    shown = np.dtype("float32" if dtype == "bfloat16" else dtype)
    rows = indexing.LazilyIndexedArray(StoredRows(shape, shown, axes, read))
    return xr.Variable(tuple(dims), rows, {"logical_dtype": dtype})
