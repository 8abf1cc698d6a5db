"""Tensors over rounds for notebooks, read and verified when their values are used."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
import xarray as xr
from xarray.backends import BackendArray
from xarray.core import indexing

from storage.rounds.commits import Commit
from storage.rounds.tensors import StoredTensors


def tensor_over_rounds(
    tensors: StoredTensors, path: str, rounds: Sequence[int], record: Callable[[int], Commit]
) -> xr.DataArray:
    """A stored tensor over these rounds, (round, *shape), of which `record` gives the commits.

    bfloat16 is shown as float32; frozen tensors have no rounds, (*shape).
    """
    spec = tensors.arrays[path]
    attributes = {"logical_dtype": spec.dtype}
    name = path.rpartition("/")[2]
    if "round" not in spec.dims:
        values = _shown(tensors.read_tensor(record(rounds[-1]), path))
        return xr.DataArray(values, dims=spec.dims, name=name, attrs=attributes)
    lazy = indexing.LazilyIndexedArray(StoredRows(tensors, path, rounds, record))
    variable = xr.Variable(spec.dims, lazy, attributes)
    return xr.DataArray(variable, coords={"round": list(rounds)}, name=name)


class StoredRows(BackendArray):
    """The rows of a tensor, (round, *shape), as xarray asks for them."""

    def __init__(
        self, tensors: StoredTensors, path: str, rounds: Sequence[int], record: Callable[[int], Commit]
    ) -> None:
        spec = tensors.arrays[path]
        self.shape = (len(rounds), *spec.shape[1:])
        self.dtype = np.dtype("float32" if spec.dtype == "bfloat16" else spec.dtype)
        self._rounds = np.asarray(rounds)
        self._read = lambda round: _shown(tensors.read_tensor(record(int(round)), path))

    def __getitem__(self, key: indexing.ExplicitIndexer) -> Any:
        """The values of an index, verified; raises `StoreDamaged`."""
        return indexing.explicit_indexing_adapter(key, self.shape, indexing.IndexingSupport.OUTER, self._rows)

    def _rows(self, key: tuple[Any, ...]) -> np.ndarray:
        """The rows and elements of an index for each axis, each of which counts on its own."""
        chosen = self._rounds[key[0]]
        rows = np.empty((chosen.size, *self.shape[1:]), self.dtype)
        for number, round in enumerate(chosen.reshape(-1)):
            rows[number] = self._read(round)
        for axis in reversed(range(1, len(key))):
            rows = rows[(slice(None),) * axis + (key[axis],)]
        return rows if chosen.ndim else rows[0]


def _shown(tensor: torch.Tensor) -> np.ndarray:
    """A tensor, (*shape), as numpy has it; bfloat16 as the float32 numbers that it stands for."""
    return (tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor).numpy()
