"""Functions that all sources share: reading files, and turning arrays of any form into checked examples."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from storage.errors import DataError, FileMissing, reason
from storage.values.tensors import UNSUMMED, dtype_name, is_dense
from tasks.data.examples import Examples, are_scalar_labels

PIXELS = (255.0, 0.0, 1.0)
"""The divisor, mean and deviation that scale bytes to the range 0 to 1."""

DICTS = "batches of dicts are not read yet; give a tuple (input, target) for each example, or wrap the data set"


UNREADABLE = (OSError, ValueError, EOFError, ImportError, NotImplementedError, zipfile.BadZipFile, zlib.error)
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


def are_dicts(value: Any) -> bool:
    """Whether a value is a dict, or a tuple or list that begins with one."""
    first = value[0] if isinstance(value, tuple | list) and value else value
    return isinstance(first, Mapping)


def examples_of(inputs: Any, targets: Any, name: str) -> Examples:
    """Make examples of arrays of inputs and targets, both (examples, *).

    Raises `DataError` if they are no arrays.
    """
    known = tensor_of(targets, name)
    examples = Examples(tensor_of(inputs, name), known.to(torch.int64) if are_scalar_labels(known) else known)
    if not len(examples.inputs) or len(examples.inputs) != len(examples.targets):
        raise DataError(f"{name} gives {len(examples.inputs)} inputs and {len(examples.targets)} targets")
    return examples


def tensor_of(value: Any, name: str) -> torch.Tensor:
    """Turn an array of any form into a dense, contiguous tensor (examples, *); raises `DataError`."""
    if are_dicts(value.tolist() if isinstance(value, np.ndarray) and value.dtype == object else value):
        raise DataError(f"{name}: {DICTS}")
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


def pixel_scaling(inputs: torch.Tensor) -> tuple[float, float, float] | None:
    """The scaling of inputs that are pixels: bytes (examples, height, width) or more dimensions; else None."""
    return PIXELS if inputs.dtype == torch.uint8 and inputs.ndim > 2 else None
