"""Arrays in files: .npz in memory; .npy, and zarr groups on a disk or in a bucket, larger than memory."""

from __future__ import annotations

import logging
import os
import zipfile
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from roundweave.storage.errors import DataError, FileMissing, failing_as, reason
from roundweave.storage.places.base import scheme_of
from roundweave.tasks.data.collating import check_lengths, examples_of
from roundweave.tasks.data.datasets import Dataset, pixel_scaling
from roundweave.tasks.data.examples import Examples, check_values
from roundweave.tasks.data.sources.table import Source
from roundweave.tasks.data.stored_files import File, FileReader, file_at, files_below

NAMES = (
    ("inputs", "targets", "held_out_inputs", "held_out_targets"),
    ("x", "y", "x_held_out", "y_held_out"),
    ("x_train", "y_train", "x_test", "y_test"),
)
"""The accepted names of the arrays: inputs, targets, and the optional held-out inputs and targets."""

SCANNED = 4096
"""The number of examples that are read at once to find the largest label."""


def reading(file: str | Path, kind: str) -> AbstractContextManager[None]:
    """Raise the errors of libraries that read a file as `DataError`s of one line, in this context.

    Raises `DataError` for a pipe, a device, or a file of ``/proc``, whose size is unknown.
    """

    def failed(error: BaseException) -> DataError:
        if isinstance(error, FileNotFoundError | NotADirectoryError):
            what = f"give the path of one to read as {kind}, which each worker must have"
            return FileMissing(f"there is no file {file}; {what}")
        return DataError(f"{file} cannot be read as {kind}: {reason(error)}")

    with failing_as(failed):
        path = Path(file)
        if not scheme_of(str(file)) and not path.is_dir() and not (path.stat().st_size and path.is_file()):
            raise DataError(f"{file} cannot be read as {kind}: it is empty, a pipe or a device; name a file")
    return failing_as(failed)


def check_memory(file: str | Path, size: int) -> None:
    """Raise `DataError` if `size`, the bytes that reading a file needs, exceeds the free memory."""
    free = psutil.virtual_memory().available
    if size > free:
        raise DataError(f"{file} holds {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free")


@dataclass(frozen=True)
class Npz(Source):
    """The arrays `inputs` and `targets`, or other `NAMES`; `by` names an array (examples,) to split by.

    Integer targets become int64. Bytes with two or more dimensions for each example are pixels, scaled to 0 to 1.
    """

    file: str
    by: str | None = None

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Return all examples, checked for NaN and bad labels."""
        kind = "an .npz file"
        with reading(self.file, kind), zipfile.ZipFile(self.file) as archive, np.load(self.file) as stored:
            sizes = {info.filename.removesuffix(".npy"): info.file_size for info in archive.infolist()}
            names = next((names for names in NAMES if {*names[:2]} <= {*sizes}), None)
            if names is None:
                raise DataError(f"{self.file} has the arrays {', '.join(sizes)}; name them inputs and targets")
            wanted = [name for name in (*names, self.by) if name in sizes]
            check_memory(self.file, 2 * sum(sizes[name] for name in wanted))  # arrays, and tensors made of them
            arrays = {name: stored[name] for name in wanted}
        train = _examples(arrays, names[0], names[1], self.file)
        held = _examples(arrays, names[2], names[3], self.file) if {*names[2:]} & {*sizes} else None
        columns = {self.by: arrays[self.by]} if self.by in arrays else {}
        if any(column.shape != (len(train),) for column in columns.values()):
            raise DataError(f"{self.file}: {self.by} must have one value for each of the {len(train)} examples")
        return Dataset(train, held, pixel_scaling(train.inputs), columns)


def _examples(arrays: dict[str, np.ndarray], inputs: str, targets: str, file: str) -> Examples:
    if missing := {inputs, targets} - {*arrays}:
        raise DataError(f"{file} has no array {missing.pop()} beside {({inputs, targets} & {*arrays}).pop()}")
    return check_values(examples_of(arrays[inputs], _integers(arrays[targets]), file, owned=True), file)


def _integers(targets: np.ndarray) -> np.ndarray:
    """Targets (example, *), int64 if they are whole numbers."""
    return targets.astype(np.int64) if targets.dtype.kind in "iu" else targets


@dataclass(frozen=True)
class Npy(Source):
    """The array of inputs (example, *) in a .npy file, and that of targets in a file beside it."""

    file: str
    target: str = "targets.npy"
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Return the reader of both arrays. Targets (example,) are in memory. Raises `DataError`."""
        files = [file_at(self.file), file_at(str(Path(self.file).parent / self.target))]
        return Dataset(_reader(_mapped(files[0]), _mapped(files[1]), files, self.hash_data))


@dataclass(frozen=True)
class Zarr(Source):
    """The arrays `inputs` (example, *) and `targets` of a zarr group, on a disk or in a bucket."""

    address: str
    hash_data: bool = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Return the reader of both arrays, by chunks or shards.

        Targets (example,) are in memory. Raises `DataError`.
        """
        import zarr  # imported here: it is slow, and other files do not need it

        files = [file for file in files_below(self.address) if file.name.startswith(("inputs/", "targets/"))]
        place: dict[str, Any] = {"store": self.address}
        if scheme_of(self.address):
            from roundweave.storage.places.objects import client_of

            client, path = client_of(self.address)
            place = {"store": zarr.storage.ObjectStore(client, read_only=True), "path": path}
        with reading(self.address, "a zarr group"):
            # What is consolidated is not what was appended since.
            arrays = dict(zarr.open_group(**place, mode="r", use_consolidated=False).arrays())
        if missing := [name for name in ("inputs", "targets") if name not in arrays]:
            raise DataError(f"{self.address} has no array {missing[0]}; it has {', '.join(arrays)}")
        inputs, targets = (_chunked(self.address, arrays[name], files) for name in ("inputs", "targets"))
        stored = arrays["inputs"].shards or arrays["inputs"].chunks
        return Dataset(_reader(inputs, targets, files, self.hash_data, stored[0]))


@dataclass(frozen=True)
class Stored:
    """An array ``(example, *)``. `take` reads some of its rows, int64 (row,) or a slice."""

    where: str
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    take: Callable[[Any], np.ndarray]

    def largest(self) -> int:
        """Return the largest of whole numbers; -1 for others."""
        if self.dtype.kind not in "iu":
            return -1
        firsts = range(0, self.shape[0], SCANNED)
        return max(int(self.take(slice(first, first + SCANNED)).max()) for first in firsts)


def _mapped(file: File) -> Stored:
    """Return the array in an .npy file."""
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


def _chunked(address: str, array: Any, files: Sequence[File]) -> Stored:
    """Return an array of a zarr group, which has these files. Missing chunks, which zarr fills, are logged."""
    where = f"{address}/{array.basename}"
    if gone := array.nchunks - array.nchunks_initialized:
        filled = f"{gone} of {array.nchunks} chunks are missing, and are read as {array.fill_value}"
        logging.getLogger("roundweave").warning(f"{where}: {filled}; restore those that held anything else")
    if coded := [name for name in CODED if name in array.attrs]:
        raise DataError(f"{where} has {coded[0]}, so its numbers are encoded; store them decoded")
    missing, by_name = _missing(array), {file.name: file for file in files}
    extents = array.shards or array.chunks
    others = [range(-(-size // extent)) for size, extent in zip(array.shape[1:], extents[1:], strict=True)]

    def take(rows: slice) -> np.ndarray:
        first, last, _ = rows.indices(array.shape[0])
        whole = array.dtype.itemsize * max(prod(extents), prod((last - first, *array.shape[1:])))
        for place in product(range(first // extents[0], -(-last // extents[0])), *others):
            if file := by_name.get(f"{array.basename}/{array.metadata.encode_chunk_key(place)}"):
                file.check()
                whole = max(whole, file.size)
        check_memory(where, 2 * whole)  # a chunk, and the rows that it is copied to
        with reading(where, "an array of zarr"):
            read = np.asarray(array[first:last])
        if missing and (gaps := int(np.isin(read, missing).sum())):
            raise DataError(f"{where} lacks {gaps} values, {missing} in the file; fill them or remove the rows")
        return read

    return Stored(where, array.shape, np.dtype(array.dtype), take)


CODED = ("scale_factor", "add_offset", "_Unsigned", "_Encoding")
"""Attributes by which xarray decodes stored numbers."""


def _missing(array: Any) -> list[Any]:
    """Return the numbers that stand for a missing one, in the convention of xarray. NaN is refused as such."""
    from xarray.backends.zarr import FillValueCoder

    of_fill = array.fill_value if array.metadata.zarr_format == 2 and "_ARRAY_DIMENSIONS" in array.attrs else None
    fill = array.attrs.get("_FillValue", of_fill)
    decoded = FillValueCoder.decode(fill, np.dtype(array.dtype)) if isinstance(fill, str) else fill
    every = [*np.ravel(decoded).tolist(), *np.ravel(array.attrs.get("missing_value")).tolist()]
    return [number for number in every if number is not None]


def _reader(inputs: Stored, targets: Stored, files: Sequence[File], hash_data: bool, group: int = 0) -> FileReader:
    """Return the reader of two arrays, in groups of so many rows if `group` is not 0. Raises `DataError`."""
    for array in (inputs, targets):
        if array.dtype.kind not in "biuf":
            raise DataError(f"{array.where} holds {array.dtype}, and examples are numbers; code it as numbers")
    check_lengths([inputs.shape, targets.shape], f"{inputs.where} and {targets.where}")
    count = inputs.shape[0]
    known = torch.from_numpy(_integers(targets.take(slice(None)))) if len(targets.shape) == 1 else None
    if known is not None:
        check_values(Examples(torch.empty(0), known), targets.where)
    starts = np.append(np.arange(0, count, group), count) if group else None

    def load(rows: Any) -> Examples:
        rows = rows if starts is None else slice(*starts[rows : rows + 2])
        labels = torch.from_numpy(_integers(targets.take(rows))) if known is None else known[rows]
        return examples_of(torch.from_numpy(inputs.take(rows)), labels, inputs.where)

    return FileReader(files, hash_data, inputs.where, count, load, known, starts, targets.largest)
