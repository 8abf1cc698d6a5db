"""Arrays in numpy's .npz files, whose headers are checked before memory is allocated."""

from __future__ import annotations

import math
import zipfile
from dataclasses import dataclass

import numpy as np

from storage.errors import DataError
from tasks.data.examples import Dataset, Examples, check_values
from tasks.data.sources.arrays import check_memory, examples_of, pixel_scaling, reading
from tasks.data.sources.base import Source

NAMES = (
    ("inputs", "targets", "held_out_inputs", "held_out_targets"),
    ("x", "y", "x_held_out", "y_held_out"),
    ("x_train", "y_train", "x_test", "y_test"),
)
"""The accepted names of the arrays: inputs, targets, and the optional held-out inputs and targets."""

READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


@dataclass(frozen=True)
class Npz(Source):
    """The arrays `inputs` and `targets`, or other `NAMES`; `by` names an array (examples,) to split by.

    Integer targets become int64. Bytes with two or more dimensions for each example are pixels, scaled to 0 to 1.
    """

    file: str
    by: str | None = None

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """All examples, checked for NaN and bad labels."""
        with reading(self.file, "an .npz file"), zipfile.ZipFile(self.file) as archive:
            sizes = {i.filename.removesuffix(".npy"): _size(archive, i, self.file) for i in archive.infolist()}
        names = next((names for names in NAMES if {*names[:2]} <= {*sizes}), None)
        if names is None:
            raise DataError(f"{self.file} has the arrays {', '.join(sizes)}; name them inputs and targets")
        wanted = [name for name in (*names, self.by) if name in sizes]
        check_memory(self.file, sum(sizes[name] for name in wanted))
        with reading(self.file, "an .npz file"), np.load(self.file, allow_pickle=False) as stored:
            arrays = {name: stored[name] for name in wanted}
        train = _examples(arrays, names[0], names[1], self.file)
        held = _examples(arrays, names[2], names[3], self.file) if {*names[2:]} & {*sizes} else None
        columns = {self.by: arrays[self.by]} if self.by in arrays else {}
        if any(column.shape != (len(train),) for column in columns.values()):
            raise DataError(f"{self.file}: {self.by} must have one value for each of the {len(train)} examples")
        return Dataset(train, held, pixel_scaling(train.inputs), columns)


def _size(archive: zipfile.ZipFile, info: zipfile.ZipInfo, file: str) -> int:
    """The size of an array in bytes; raises `DataError` if its header says another size."""
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


def _examples(arrays: dict[str, np.ndarray], inputs: str, targets: str, file: str) -> Examples:
    for name, other in ((inputs, targets), (targets, inputs)):
        if name not in arrays:
            raise DataError(f"{file} has no array {name} beside {other}")
    known = arrays[targets]
    examples = examples_of(arrays[inputs], known.astype(np.int64) if known.dtype.kind in "iu" else known, file)
    check_values(examples, file)
    return examples
