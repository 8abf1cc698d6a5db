"""Arrays on disk that are larger than memory: numpy's .npy files, and zarr groups on a disk or in a bucket."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.errors import DataError
from storage.places.addresses import last_name, scheme_of
from storage.values.hashing import json_digest
from tasks.data.datasets import Dataset, Reader
from tasks.data.examples import Examples, check_values
from tasks.data.files import File, client_of, file_at, files_below, shown
from tasks.data.grouped import Grouped
from tasks.data.sources.arrays import examples_of, reading
from tasks.data.sources.table import Source

SCANNED = 4096
"""Of so many examples at once the largest label is found."""


@dataclass(frozen=True)
class Npy(Source):
    """The array of inputs (example, *) in a .npy file, and that of targets in a file beside it."""

    file: str
    target: str = "targets.npy"
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What reads both; targets (example,) are in memory."""
        inputs, targets = Mapped.of(self.file), Mapped.of(str(Path(self.file).parent / self.target))
        return Dataset(NpyReader(inputs, targets, _known_targets(inputs, targets), self.hash_data))


@dataclass(frozen=True)
class Mapped:
    """An array in a .npy file, which is mapped into memory for each reading."""

    file: File
    dtype: np.dtype[Any]
    offset: int
    shape: tuple[int, ...]
    order: Any

    @classmethod
    def of(cls, path: str) -> Mapped:
        """The array in a file; raises `DataError` if it holds no numbers."""
        file = file_at(path)
        with reading(path, "an array of numbers in an .npy file"):
            found = np.load(path, mmap_mode="r", allow_pickle=False)
        order = "F" if found.flags.f_contiguous and not found.flags.c_contiguous else "C"
        return cls(file, found.dtype, found.offset, found.shape, order)

    def __str__(self) -> str:
        return self.file.address

    def __getitem__(self, rows: Any) -> np.ndarray:
        self.file.check()
        # The pages of a map that stays would count as memory of this process.
        whole = np.memmap(self.file.address, self.dtype, "r", self.offset, self.shape, self.order)
        return np.asarray(whole[rows], self.dtype.newbyteorder("="))


@dataclass(frozen=True, eq=False)
class NpyReader(Reader):
    """Reads the rows of two arrays; `known` are all targets (example,), unless they are arrays."""

    inputs: Mapped
    stored: Mapped
    known: torch.Tensor | None
    hash_data: bool

    def __len__(self) -> int:
        return self.inputs.shape[0]

    def read(self, rows: np.ndarray) -> Examples:
        """The examples at some rows, int64 (row,)."""
        targets = _counted(self.stored[rows]) if self.known is None else self.known[torch.from_numpy(rows)]
        return examples_of(self.inputs[rows], targets, str(self.inputs))

    @property
    def targets(self) -> torch.Tensor | None:
        """All targets (example,); None if they are arrays."""
        return self.known

    @property
    def classes(self) -> int:
        """One more than the largest label of targets that are arrays."""
        return _classes(self.stored)

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """What shows that both files are the same, by name."""
        return shown([self.inputs.file, self.stored.file], self.hash_data)


@dataclass(frozen=True)
class Zarr(Source):
    """The arrays `inputs` (example, *) and `targets` of a zarr group, on a disk or in a bucket."""

    address: str
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What reads them by chunks, or shards, of `inputs`; targets (example,) are in memory."""
        files = {file.name: file for file in files_below(self.address, deep=True)}
        with reading(self.address, "a zarr group"):
            arrays = dict(_zarr_group(self.address).arrays())
        for name in ("inputs", "targets"):
            if name not in arrays:
                raise DataError(
                    f"{self.address} has no array {name}, but {', '.join(arrays) or 'none'}; "
                    "it needs inputs and targets"
                )
        inputs, targets = (
            Chunked(
                self.address,
                name,
                arrays[name],
                {key: f for key, f in files.items() if key.startswith(f"{name}/")},
            )
            for name in ("inputs", "targets")
        )
        return Dataset(ZarrReader(inputs, targets, _known_targets(inputs, targets), self.hash_data))


@dataclass(frozen=True, eq=False)
class Chunked:
    """An array of a zarr group, and its files by their names in it."""

    address: str
    name: str
    array: Any
    files: Mapping[str, File]

    def __str__(self) -> str:
        return f"{self.address}/{self.name}"

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of its elements."""
        return np.dtype(self.array.dtype)

    @property
    def shape(self) -> tuple[int, ...]:
        """Its shape (example, *)."""
        return tuple(self.array.shape)

    @property
    def stored_rows(self) -> int:
        """How many rows are stored in one file."""
        return int((self.array.shards or self.array.chunks)[0])

    def __getitem__(self, rows: slice) -> np.ndarray:
        first, last, _ = rows.indices(self.shape[0])
        # zarr reads a chunk without a file as one that holds its fill value.
        extents = self.array.shards or self.array.chunks
        others = [range(-(-size // extent)) for size, extent in zip(self.shape[1:], extents[1:], strict=True)]
        for place in product(range(first // extents[0], -(-last // extents[0])), *others):
            file = self.files.get(f"{self.name}/{self.array.metadata.encode_chunk_key(place)}")
            if file is not None:
                file.check()
        with reading(self.address, "a zarr group"):
            return np.asarray(self.array[first:last])


@dataclass(frozen=True, eq=False)
class ZarrReader(Grouped):
    """Reads two arrays by the chunks or shards of the inputs; `known` as for `NpyReader`."""

    inputs: Chunked
    stored: Chunked
    known: torch.Tensor | None
    hash_data: bool

    @property
    def targets(self) -> torch.Tensor | None:
        """All targets (example,); None if they are arrays."""
        return self.known

    @property
    def classes(self) -> int:
        """One more than the largest label of targets that are arrays."""
        return _classes(self.stored)

    @functools.cached_property
    def files(self) -> dict[str, str]:
        """What shows that the files of each array are the same, by the array's name."""
        arrays = (self.inputs, self.stored)
        each = shown([file for array in arrays for file in array.files.values()], self.hash_data, edge=0)
        return {
            f"{last_name(array.address)}/{array.name}": json_digest({name: each[name] for name in array.files})
            for array in arrays
        }

    @functools.cached_property
    def starts(self) -> np.ndarray:  # type: ignore[override]
        """The first row of each chunk or shard, and the number of rows."""
        count = self.inputs.shape[0]
        return np.append(np.arange(0, count, self.inputs.stored_rows), count)

    def group(self, number: int) -> Examples:
        """Read a chunk or shard of the inputs, and its targets."""
        rows = slice(*self.starts[number : number + 2].tolist())
        targets = _counted(self.stored[rows]) if self.known is None else self.known[rows]
        return examples_of(self.inputs[rows], targets, str(self.inputs))


def _zarr_group(address: str) -> Any:
    import zarr  # imported here: it is slow, and other sources do not need it

    if not scheme_of(address):
        return zarr.open_group(address, mode="r")
    client, path = client_of(address)
    return zarr.open_group(zarr.storage.ObjectStore(client, read_only=True), path=path, mode="r")


def _known_targets(inputs: Mapped | Chunked, targets: Mapped | Chunked) -> torch.Tensor | None:
    """All targets (example,), or None if they are arrays; raises `DataError` if both arrays do not fit."""
    for array in (inputs, targets):
        if array.dtype.kind not in "biuf":
            raise DataError(f"{array} holds {array.dtype}, and examples are arrays of numbers; code it as numbers")
        if not array.shape or not array.shape[0]:
            raise DataError(f"{array} has the shape {array.shape}, and holds no examples")
    if inputs.shape[0] != targets.shape[0]:
        raise DataError(f"{inputs} has {inputs.shape[0]} inputs, and {targets} {targets.shape[0]} targets")
    if len(targets.shape) > 1:
        return None
    known = torch.from_numpy(np.array(_counted(targets[:])))
    check_values(Examples(torch.empty(0), known), str(targets))
    return known


def _counted(targets: np.ndarray) -> np.ndarray:
    """Targets with whole numbers in int64."""
    return targets.astype(np.int64) if targets.dtype.kind in "iu" else targets


def _classes(targets: Mapped | Chunked) -> int:
    """One more than the largest label of targets that are arrays, (example, *); 0 for others."""
    if len(targets.shape) == 1 or targets.dtype.kind not in "iu":
        return 0
    return 1 + max(int(targets[first : first + SCANNED].max()) for first in range(0, targets.shape[0], SCANNED))
