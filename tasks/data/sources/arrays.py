"""Arrays of any form as examples, and numpy's .npz files, whose headers are checked before memory is taken."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from storage.errors import DataError, FileMissing, reason
from storage.values.tensors import UNSUMMED, dtype_name, is_dense
from tasks.data.datasets import Dataset, pixel_scaling
from tasks.data.examples import Examples, Tensors, are_scalar_labels, check_values, first_tensor, tensors_of
from tasks.data.sources.table import Source

UNREADABLE = (
    *(OSError, ValueError, EOFError, ImportError, NotImplementedError, SyntaxError),
    *(zipfile.BadZipFile, zlib.error, tokenize.TokenError),
)
"""The exceptions that libraries raise for a file that is broken or of another kind."""


@contextmanager
def reading(file: str | Path, kind: str) -> Iterator[None]:
    """Turn errors of reading a missing, broken or wrong file in this block into `DataError`s of one line."""
    try:
        yield
    except DataError:
        raise
    except (FileNotFoundError, NotADirectoryError) as error:
        raise FileMissing(
            f"there is no file {file}; give the path of one to read as {kind}, which every worker must see"
        ) from error
    except UNREADABLE as error:
        raise DataError(f"{file} cannot be read as {kind}: {reason(error)}") from error


def examples_of(inputs: Any, targets: Any, name: str) -> Examples:
    """Make examples of arrays of inputs and targets, both (examples, *), or of several by name.

    Raises `DataError` if they are no arrays.
    """
    examples = Examples(_part(inputs, name), _part(targets, name))
    if isinstance(known := examples.targets, torch.Tensor) and are_scalar_labels(known):
        examples = Examples(examples.inputs, known.to(torch.int64))
    lengths = {len(tensor) for tensor in tensors_of(examples)}
    if lengths == {0} or len(lengths) > 1:
        raise DataError(f"{name} gives {len(examples)} inputs and {len(first_tensor(known))} targets")
    return examples


def _part(value: Any, name: str) -> Tensors:
    """The tensor (examples, *) of an array of any form, or those of several arrays by name."""
    if isinstance(value, Mapping):
        return {str(key): tensor_of(inner, name) for key, inner in value.items()}
    return tensor_of(value, name)


def tensor_of(value: Any, name: str) -> torch.Tensor:
    """Turn an array of any form into a dense, contiguous tensor (examples, *); raises `DataError`."""
    try:
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} gives a {type(value).__name__} that is no array: {error}") from error
    if not is_dense(tensor):
        raise DataError(f"{name} gives a tensor that is sparse, nested or without values; make it a dense one")
    tensor = tensor.to(torch.int64) if tensor.dtype in UNSUMMED else tensor
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        raise DataError(f"{name} gives numbers of type {dtype_name(tensor.dtype)}; give float32")
    if tensor.ndim == 0:
        raise DataError(f"{name} gives a single number where an array of examples belongs")
    return tensor.contiguous()


def check_memory(file: str | Path, size: int) -> None:
    """Raise `DataError` if `size`, the bytes that reading a file needs, exceeds the free memory."""
    free = psutil.virtual_memory().available
    if size > free:
        raise DataError(f"{file} holds {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free")


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
