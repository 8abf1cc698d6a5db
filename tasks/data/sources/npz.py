"""Arrays in an .npz file of numpy, of which the headers are checked before memory is taken."""

from __future__ import annotations

import math
import zipfile
import zlib
from dataclasses import dataclass

import numpy as np

from storage.errors import DataError, FileMissing, reason
from tasks.data.examples import Dataset, Examples, check_values
from tasks.data.sources.arrays import check_memory, examples_of, pixel_scaling
from tasks.data.sources.base import Source

NAMES = (
    ("inputs", "targets", "held_out_inputs", "held_out_targets"),
    ("x", "y", "x_held_out", "y_held_out"),
    ("x_train", "y_train", "x_test", "y_test"),
)
"""How arrays are named: inputs, targets, and of held-out examples, if there are any, the same."""

READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class Npz(Source):
    """The arrays `inputs` and `targets`, or other `NAMES`; `by` names an array (examples,) to split by.

    Integer targets become int64; bytes with two dimensions an example or more are pixels, and brought to 0 to 1.
    """

    file: str
    by: str | None = None

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """All examples, checked for NaN and bad labels."""
        headers = _headers(self.file)
        names = next((names for names in NAMES if {*names[:2]} <= {*headers}), None)
        if names is None:
            raise DataError(f"{self.file} has the arrays {', '.join(headers)}; name them inputs and targets")
        wanted = [name for name in (*names, self.by) if name in headers]
        check_memory(self.file, sum(headers[name] for name in wanted))
        arrays = _read(self.file, wanted)
        train = _examples(arrays, names[0], names[1], self.file)
        held = _examples(arrays, names[2], names[3], self.file) if {*names[2:]} & {*headers} else None
        columns = {self.by: arrays[self.by]} if self.by in arrays else {}
        if any(column.shape != (len(train),) for column in columns.values()):
            raise DataError(f"{self.file}: {self.by} must have one value for each of the {len(train)} examples")
        return Dataset(train, held, pixel_scaling(train.inputs), columns)


def _headers(file: str) -> dict[str, int]:
    """The bytes of each array by its name, once header and length agree."""
    try:
        with zipfile.ZipFile(file) as archive:
            return {info.filename.removesuffix(".npy"): _size(archive, info, file) for info in archive.infolist()}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        if isinstance(error, DataError):
            raise
        if isinstance(error, FileNotFoundError):
            raise FileMissing(f"there is no file {file}; --data npz:FILE names one") from error
        raise DataError(f"{file} cannot be read as an .npz file: {reason(error)}") from error


def _size(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> int:
    with archive.open(info) as member:
        reader = READERS.get(np.lib.format.read_magic(member))
        if reader is None:
            raise DataError(f"{file}: {info.filename} is of an unknown version of numpy's format")
        shape, _, dtype = reader(member)
        held = info.file_size - member.tell()
    if dtype.hasobject:
        raise DataError(f"{file}: {info.filename} holds Python objects; save it as an array of numbers")
    if math.prod(shape) * dtype.itemsize != held:
        raise DataError(f"{file}: {info.filename} promises {shape} of {dtype} and holds {held} bytes")
    return held


def _read(file: str, names: list[str]) -> dict[str, np.ndarray]:
    try:
        with np.load(file, allow_pickle=False) as arrays:
            return {name: arrays[name] for name in names}
    except (OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise DataError(f"{file} cannot be read as an .npz file: {reason(error)}") from error


def _examples(arrays: dict[str, np.ndarray], inputs: str, targets: str, file: str) -> Examples:
    missing = [name for name in (inputs, targets) if name not in arrays]
    if missing:
        raise DataError(f"{file} has no array {missing[0]} beside {inputs if missing[0] == targets else targets}")
    known = arrays[targets]
    examples = examples_of(arrays[inputs], known.astype(np.int64) if known.dtype.kind in "iu" else known, file)
    check_values(examples, file)
    return examples
