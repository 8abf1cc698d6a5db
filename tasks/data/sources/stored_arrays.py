"""Arrays on disk that are larger than memory: numpy's .npy files, and zarr groups on a disk or in a bucket."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import torch

from storage.errors import DataError
from storage.places.addresses import scheme_of
from storage.places.objects import client_of
from tasks.data.datasets import Dataset
from tasks.data.examples import Examples, check_values
from tasks.data.sources.arrays import reading
from tasks.data.sources.table import Source
from tasks.data.stored_files import File, FileReader, by_groups, file_at, files_below

SCANNED = 4096
"""Of so many examples at once the largest label is found."""


@dataclass(frozen=True)
class Npy(Source):
    """The array of inputs (example, *) in a .npy file, and that of targets in a file beside it."""

    file: str
    target: str = "targets.npy"
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What reads both arrays; targets (example,) are in memory. Raises `DataError`."""
        files = [file_at(self.file), file_at(str(Path(self.file).parent / self.target))]
        return Dataset(_reader(_mapped(files[0]), _mapped(files[1]), files, self.hash_data))


@dataclass(frozen=True)
class Zarr(Source):
    """The arrays `inputs` (example, *) and `targets` of a zarr group, on a disk or in a bucket."""

    address: str
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What reads both arrays, by chunks or shards; targets (example,) are in memory. Raises `DataError`."""
        names = ("inputs", "targets")
        files = [file for file in files_below(self.address) if file.name.startswith(tuple(f"{n}/" for n in names))]
        with reading(self.address, "a zarr group"):
            arrays = dict(_zarr_group(self.address).arrays())
        if missing := [name for name in names if name not in arrays]:
            raise DataError(f"{self.address} has no array {missing[0]}, but: {', '.join(arrays)}; name it so")
        by_name = {file.name: file for file in files}
        inputs, targets = (_chunked(f"{self.address}/{name}", arrays[name], by_name) for name in names)
        stored = arrays["inputs"].shards or arrays["inputs"].chunks
        return Dataset(_reader(inputs, targets, files, self.hash_data, stored[0]))


@dataclass(frozen=True)
class Stored:
    """An array (example, *); `take` reads some of its rows, int64 (row,) or a slice."""

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    take: Callable[[Any], np.ndarray]

    def tensor(self, rows: Any, labels: bool = False) -> torch.Tensor:
        """Some rows; of `labels` all whole numbers are int64, else those that torch cannot add up."""
        found = self.take(rows)
        wide = found.dtype.kind in "iu" if labels else found.dtype.kind == "u" and found.dtype.itemsize > 1
        return torch.from_numpy(found.astype(np.int64) if wide else found)

    def largest(self) -> int:
        """The largest of whole numbers; -1 for others."""
        if self.dtype.kind not in "iu":
            return -1
        firsts = range(0, self.shape[0], SCANNED)
        return max(int(self.take(slice(first, first + SCANNED)).max()) for first in firsts)


def _mapped(file: File) -> Stored:
    """The array in an .npy file."""
    with reading(file.address, "an array of numbers in an .npy file"):
        found = np.load(file.address, mmap_mode="r", allow_pickle=False)
    dtype, offset, shape = found.dtype, found.offset, found.shape
    if not found.flags.c_contiguous:
        raise DataError(f"{file.address} is in Fortran's order; save numpy.ascontiguousarray of the array")

    def take(rows: Any) -> np.ndarray:
        file.check()
        if isinstance(rows, slice):
            return np.array(np.memmap(file.address, dtype, "r", offset, shape)[rows], dtype.newbyteorder("="))
        # Not by a map: its pages count as memory of this process, and mapping them takes longer (0.8 against 0.25
        # ms for 128 rows of 3 kB that the system holds).
        read = np.empty((len(rows), *shape[1:]), dtype)
        with reading(file.address, "an .npy file"), Path(file.address).open("rb", buffering=0) as opened:
            places = zip(read.reshape(len(rows), -1), rows.tolist(), strict=True)
            got = sum(os.preadv(opened.fileno(), [row.data], offset + n * row.nbytes) for row, n in places)
        if got != read.nbytes:
            raise DataError(f"{file.address} ends before its last example; restore it")
        return read.astype(dtype.newbyteorder("="), copy=False)

    return Stored(file.address, shape, dtype, take)


def _chunked(where: str, array: Any, files: Mapping[str, File]) -> Stored:
    """An array of a zarr group, which has these files."""
    extents = array.shards or array.chunks
    others = [range(-(-size // extent)) for size, extent in zip(array.shape[1:], extents[1:], strict=True)]

    def take(rows: slice) -> np.ndarray:
        first, last, _ = rows.indices(array.shape[0])
        # zarr takes a chunk whose file is gone for one that holds its fill value.
        for place in product(range(first // extents[0], -(-last // extents[0])), *others):
            key = f"{array.basename}/{array.metadata.encode_chunk_key(place)}"
            if key in files:
                files[key].check()
        with reading(where, "an array of zarr"):
            return np.asarray(array[first:last])

    return Stored(where, array.shape, np.dtype(array.dtype), take)


def _zarr_group(address: str) -> Any:
    import zarr  # imported here: it is slow, and .npy files do not need it

    if not scheme_of(address):
        return zarr.open_group(address, mode="r")
    client, path = client_of(address)
    return zarr.open_group(zarr.storage.ObjectStore(client, read_only=True), path=path, mode="r")


def _reader(inputs: Stored, targets: Stored, files: Sequence[File], hash_data: bool, group: int = 0) -> FileReader:
    """What reads two arrays, in groups of so many rows if `group` is not 0; raises `DataError`."""
    for array in (inputs, targets):
        if array.dtype.kind not in "biuf":
            raise DataError(f"{array.where} holds {array.dtype}, and examples are numbers; code it as numbers")
        if not array.shape or not array.shape[0]:
            raise DataError(f"{array.where} has the shape {array.shape}, and holds no examples")
    count, others = inputs.shape[0], targets.shape[0]
    if count != others:
        raise DataError(f"{inputs.where} has {count} inputs, and {targets.where} {others} targets; make them fit")
    known = targets.tensor(slice(None), labels=True) if len(targets.shape) == 1 else None
    if known is not None:
        check_values(Examples(torch.empty(0), known), targets.where)

    def read(rows: Any) -> Examples:
        return Examples(inputs.tensor(rows), targets.tensor(rows, labels=True) if known is None else known[rows])

    way: dict[str, Any] = {"count": count, "load": read}
    if group:
        starts = np.append(np.arange(0, count, group), count)
        way = by_groups(starts, lambda number: read(slice(*starts[number : number + 2])))
    return FileReader(found=files, hash_data=hash_data, targets=known, largest=targets.largest, **way)
