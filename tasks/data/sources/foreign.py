"""Data sets of torch and of Hugging Face, read whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from storage.errors import DataError, one_line

TARGETS = ("label", "labels", "target", "targets")
"""Columns of a Hugging Face data set that are the targets; where there is none of them the last one is."""


DICTS = "batches of dicts are not read yet; give a tuple (input, target) for each example, or wrap the data set"

READ_TWICE = 8
"""Examples that are read twice, from the first to the last."""


def check_same(found: Sequence[Any], again: Sequence[Any], name: str) -> None:
    """Raise `DataError` where inputs and targets (examples, *) were others when they were read again."""
    for one, other in zip(map(torch.as_tensor, found), map(torch.as_tensor, again), strict=True):
        if one.shape != other.shape or not torch.isclose(one, other, rtol=0, atol=0, equal_nan=True).all():
            raise DataError(
                f"{name} gives other examples when it is read again, so no round could be replayed; "
                "seed what it draws, and move random augmentation into the model's forward, in training"
            )


def is_foreign(value: Any) -> bool:
    """Whether it is a data set of torch or of Hugging Face; the latter is told by what it can do."""
    columns = hasattr(value, "column_names") and hasattr(value, "with_format") and not isinstance(value, dict)
    return columns or isinstance(value, torch.utils.data.Dataset)


def arrays_of(value: Any, name: str) -> tuple[Any, Any]:
    """Its inputs (examples, *) and targets (examples, *); raises `DataError`."""
    if hasattr(value, "column_names"):
        return _columns(value, name)
    if not hasattr(value, "__len__"):
        raise DataError(f"{name} gives a stream ({type(value).__name__}); give a data set of a known length")
    pairs = [value[number] for number in range(len(value))]
    if pairs and any(isinstance(part, Mapping) for part in (pairs[0], *pairs[0])):
        raise DataError(f"{name}: {DICTS}")
    if not pairs or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise DataError(f"{name}: each example of a {type(value).__name__} must be a pair (input, target)")
    inputs, targets = zip(*pairs, strict=True)
    found = _stacked(inputs, name), _stacked(targets, name)
    few = _few(len(pairs))
    again = [_stacked(each, name) for each in zip(*(value[number] for number in few), strict=True)]
    check_same([part[few] for part in found], again, name)
    return found


def _few(count: int) -> list[int]:
    """Numbers of examples to read again."""
    return [int(number) for number in np.linspace(0, count - 1, READ_TWICE)]


def _stacked(values: Sequence[Any], name: str) -> torch.Tensor:
    """Tensors, arrays, pictures or numbers of one shape as one tensor (examples, *)."""
    try:
        return torch.stack([v if isinstance(v, torch.Tensor) else torch.from_numpy(np.array(v)) for v in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: examples do not stack to one array: {one_line(error)}") from error


def _columns(value: Any, name: str) -> tuple[Any, Any]:
    """One column as it is, or several of numbers side by side, float32 (examples, columns); and the targets."""
    names = list(value.column_names)
    target = next((column for column in TARGETS if column in names), names[-1] if names else "")
    inputs = [column for column in names if column != target]
    if not inputs:
        raise DataError(f"{name}: the data set has the columns {names}; inputs and targets need one each")
    read = value.with_format("numpy")
    content = read[:]
    for column in names:
        if np.asarray(content[column]).dtype.kind not in "biuf":
            raise DataError(f"{name}: column {column!r} holds no numbers of one shape; code it or remove it")
    if len(content[target]):
        again = read[few := _few(len(content[target]))]
        check_same([np.asarray(content[c])[few] for c in names], [np.asarray(again[c]) for c in names], name)
    arrays = [np.asarray(content[column]) for column in inputs]
    if len(arrays) == 1:
        return arrays[0], content[target]
    if any(array.ndim != 1 for array in arrays):
        raise DataError(
            f"{name}: of the columns {', '.join(inputs)} only one can be the inputs; remove the others"
        )
    return np.stack(arrays, axis=1).astype(np.float32), content[target]
