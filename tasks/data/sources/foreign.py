"""Data sets of torch and of Hugging Face, read whole."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from storage.errors import DataError, one_line
from tasks.data.sources.arrays import DICTS, are_dicts

TARGETS = ("label", "labels", "target", "targets")
"""Columns of a Hugging Face data set that are the targets; where there is none of them the last one is."""


def is_foreign(value: Any) -> bool:
    """Whether it is a data set of torch or of Hugging Face; the latter is told by what it can do."""
    columns = hasattr(value, "column_names") and hasattr(value, "with_format") and not isinstance(value, dict)
    return columns or isinstance(value, torch.utils.data.Dataset)


def arrays_of(value: Any, name: str, most: int | None = None) -> tuple[Any, Any]:
    """Its inputs (examples, *) and targets (examples, *), of the first ones if not all; raises `DataError`."""
    if hasattr(value, "column_names"):
        return _columns(value, name, most)
    if not hasattr(value, "__len__"):
        raise DataError(f"{name} gives a stream ({type(value).__name__}); give a data set of a known length")
    pairs = [value[number] for number in range(len(value))[:most]]
    if pairs and (are_dicts(pairs) or are_dicts(pairs[0])):
        raise DataError(f"{name}: {DICTS}")
    if not pairs or any(not isinstance(pair, tuple | list) or len(pair) != 2 for pair in pairs):
        raise DataError(f"{name}: each example of a {type(value).__name__} must be a pair (input, target)")
    inputs, targets = zip(*pairs, strict=True)
    return _stacked(inputs, name), _stacked(targets, name)


def _stacked(values: Sequence[Any], name: str) -> torch.Tensor:
    """Tensors, arrays, pictures or numbers of one shape as one tensor (examples, *)."""
    try:
        return torch.stack([v if isinstance(v, torch.Tensor) else torch.from_numpy(np.array(v)) for v in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: examples do not stack to one array: {one_line(error)}") from error


def _columns(value: Any, name: str, most: int | None) -> tuple[Any, Any]:
    """One column as it is, or several of numbers side by side, float32 (examples, columns); and the targets."""
    names = list(value.column_names)
    target = next((column for column in TARGETS if column in names), names[-1] if names else "")
    inputs = [column for column in names if column != target]
    if not inputs:
        raise DataError(f"{name}: the data set has the columns {names}; inputs and targets need one each")
    content = value.with_format("numpy")[:most]
    for column in names:
        if np.asarray(content[column]).dtype.kind not in "biuf":
            raise DataError(f"{name}: column {column!r} holds no numbers of one shape; code it or remove it")
    arrays = [np.asarray(content[column]) for column in inputs]
    if len(arrays) == 1:
        return arrays[0], content[target]
    if any(array.ndim != 1 for array in arrays):
        raise DataError(
            f"{name}: of the columns {', '.join(inputs)} only one can be the inputs; remove the others"
        )
    return np.stack(arrays, axis=1).astype(np.float32), content[target]
