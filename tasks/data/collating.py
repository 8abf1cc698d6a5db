"""Makes examples of users' data: arrays of any form, and single examples, which are stacked."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import DataError, failing_as, one_line
from roundweave.storage.values.tensors import UNSUMMED, dtype_name, is_dense
from roundweave.tasks.data.examples import Examples, are_scalar_labels, tensors_of

TARGETS = ("labels", "label", "target", "targets")
"""Names of the targets among several tensors or columns; Hugging Face's models take ``labels``."""


def needed(function: Callable[..., Any]) -> int:
    """Return the number of arguments that a function needs by position."""
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    return sum(p.kind in kinds and p.default is p.empty for p in inspect.signature(function).parameters.values())


def collated(items: Sequence[Any], name: str, alone: bool = False) -> Examples:
    """Return the batch of examples: pairs (input, target), or dicts of tensors, arrays, pictures or numbers.

    In dicts, one of the names `TARGETS` has the targets. A single input may be taken `alone`, as that of a table.
    Raises `DataError` if they do not stack.
    """
    if items and all(isinstance(item, Mapping) for item in items):
        batch = batch_of({key: [item[key] for item in items] for key in items[0]}, name)
        return Examples(joined(batch.inputs), batch.targets) if alone and len(batch.inputs) == 1 else batch
    for item in items:
        check_pair(item, f"{name}: an example")
    return batch_of(tuple(zip(*items, strict=True)), name)


def check_pair(given: Any, what: str) -> None:
    """Raise `DataError` unless an example or a batch is a pair."""
    if not isinstance(given, tuple | list) or len(given) != 2:
        kind = type(given).__name__
        raise DataError(f"{what} must be a pair of inputs and targets, or a dict with labels, not {kind}")


def batch_of(batch: Any, name: str) -> Examples:
    """Return the examples of a batch: a pair (inputs, targets), or a mapping with one of `TARGETS`."""
    if isinstance(batch, Examples):
        return batch
    if isinstance(batch, Mapping):
        batch = inputs_and_targets(batch, name)
    check_pair(batch, f"{name}: a batch")
    inputs, targets = batch
    return _paired(inputs, targets, _stacked, name)


def examples_of(inputs: Any, targets: Any, name: str, owned: bool = False) -> Examples:
    """Return examples of arrays ``(example, *)`` of any form, or of several by name, as dense tensors.

    Arrays of numpy are copied, unless they are `owned`: nobody else has them, for example after reading. Raises
    `DataError`.
    """
    return _paired(inputs, targets, partial(_dense, owned=owned), name)


def inputs_and_targets(named: Mapping[str, Any], name: str) -> tuple[dict[str, Any], Any]:
    """Return the inputs by name, and the targets, which have one of the names `TARGETS`. Raises `DataError`."""
    target = next((key for key in TARGETS if key in named), None)
    if target is None or len(named) < 2:
        raise DataError(f"{name}: a batch of {', '.join(map(str, named))} needs inputs, and targets called labels")
    return {key: value for key, value in named.items() if key != target}, named[target]


def joined(columns: Mapping[str, Any]) -> Any:
    """Return the inputs of columns ``(row, *)`` by name, in the form in which they are used.

    A single column stays as it is. Several columns of numbers become floats (row, column). Other columns keep
    their names.
    """
    if len(columns) == 1:
        return next(iter(columns.values()))
    if any(np.ndim(column) > 1 for column in columns.values()):
        return columns
    return np.stack([floats(column, f"column {name!r}") for name, column in columns.items()], axis=1)


def floats(column: Any, name: str) -> np.ndarray:
    """Return a column (row, *) of numbers as float32 if all numbers of its type are such, else as float64.

    Raises `DataError` for whole numbers that float64 cannot tell apart.
    """
    values: np.ndarray = np.asarray(column)
    if values.dtype.kind in "iu" and values.size and max(int(values.max()), -int(values.min())) > 2**53:
        raise DataError(f"{name} has whole numbers beyond 2^53; subtract a constant, or leave it out")
    return values.astype(np.float64 if np.result_type(values.dtype, np.float32).itemsize > 4 else np.float32)


def check_lengths(shapes: Sequence[tuple[int, ...]], name: str) -> None:
    """Raise `DataError` unless arrays ``(example, *)`` of these shapes have the same number of examples, 1 or
    more.
    """
    if len({shape[:1] for shape in shapes}) != 1 or not any(shapes[0][:1]):
        given = ", ".join(map(str, shapes))
        raise DataError(f"{name}: arrays have shapes {given}; give all the same number of examples, at least one")


def _paired(inputs: Any, targets: Any, convert: Callable[[Any, str], Any], name: str) -> Examples:
    """Examples of parts whose arrays, one each or several by name, are converted; labels become int64."""

    def converted(part: Any) -> Any:
        named = isinstance(part, Mapping)
        return {str(key): convert(part[key], name) for key in part} if named else convert(part, name)

    made = Examples(converted(inputs), converted(targets))
    check_lengths([tuple(tensor.shape) for tensor in tensors_of(made)], name)
    labels = isinstance(made.targets, torch.Tensor) and are_scalar_labels(made.targets)
    return Examples(made.inputs, made.targets.to(torch.int64)) if labels else made


def _check_unmasked(values: Any, name: str) -> None:
    """Raise `DataError` for an array of numpy, or arrays or numbers, with masked entries."""
    each = [values] if isinstance(values, np.ndarray) else values if isinstance(values, list | tuple) else []
    if masked := sum(int(np.ma.count_masked(one)) for one in each if isinstance(one, np.ma.MaskedArray)):
        raise DataError(f"{name}: {masked} numbers are masked; fill them or remove the examples")


def _dense(value: Any, name: str, owned: bool) -> torch.Tensor:
    """Return an array of any form as a dense, contiguous tensor (example, *). Raises `DataError`."""
    _check_unmasked(value, name)
    kind = f"{type(value).__name__} that is no array of numbers, or lacks some"
    with failing_as(lambda error: DataError(f"{name} gives a {kind}: {one_line(error)}")):
        array = value if owned or isinstance(value, torch.Tensor) else np.array(value)
        tensor = array.detach() if isinstance(array, torch.Tensor) else torch.from_numpy(array)
    if not is_dense(tensor):
        raise DataError(f"{name} gives a tensor that is sparse, nested or without values; make it a dense one")
    if tensor.is_floating_point() and tensor.dtype.itemsize == 1:
        raise DataError(f"{name} gives numbers of type {dtype_name(tensor.dtype)}; give float32")
    whole = tensor.to(torch.int64) if tensor.dtype in UNSUMMED else tensor
    if tensor.dtype == torch.uint64 and bool((whole < 0).any()):
        raise DataError(f"{name} gives whole numbers of 2^63 and more; subtract a constant")
    return whole.contiguous()


def _stacked(values: Any, name: str) -> Any:
    """Stack tensors, arrays, pictures or numbers of the same shape to a tensor (examples, *); dicts by name."""
    _check_unmasked(values, name)
    if isinstance(values, torch.Tensor):
        return values
    if isinstance(values, np.ndarray) and values.ndim and values.dtype.kind in "biuf":
        return torch.from_numpy(values)
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise DataError(f"{name}: a batch holds a {type(values).__name__} where an array of examples belongs")
    if len(values) and isinstance(values[0], Mapping):
        return {key: _stacked([value[key] for value in values], name) for key in values[0]}
    what = f"{name}: examples do not stack to one array"
    with failing_as(lambda error: DataError(f"{what}: {one_line(error)}; pad them by --collate FILE.py:fn")):
        return torch.stack([v if isinstance(v, torch.Tensor) else torch.from_numpy(np.array(v)) for v in values])
