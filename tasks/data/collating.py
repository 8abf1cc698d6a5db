"""Makes a batch of examples that are given one by one, by the user's function or by stacking what is alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from storage.errors import DataError, one_line
from tasks.data.examples import Examples, are_scalar_labels, tensors_of

TARGETS = ("labels", "label", "target", "targets")
"""Names of the targets among several tensors or columns; Hugging Face's models take ``labels``."""


def collated(items: Sequence[Any], name: str) -> Examples:
    """The batch of examples that are pairs (input, target), or dicts of tensors, arrays, pictures or numbers.

    Of dicts, one of the names `TARGETS` has the targets. Raises `DataError` where they do not stack.
    """
    if items and all(isinstance(item, Mapping) for item in items):
        return batch_of({key: _stacked([item[key] for item in items], name) for key in items[0]}, name)
    for item in items:
        check_pair(item, name)
    inputs, targets = zip(*items, strict=True)
    return batch_of((_stacked(inputs, name), _stacked(targets, name)), name)


def check_pair(item: Any, name: str) -> None:
    """Raise `DataError` unless an example is a pair."""
    if not isinstance(item, tuple | list) or len(item) != 2:
        raise DataError(
            f"{name}: each example must be a pair (input, target), or a dict that has labels, not "
            f"{type(item).__name__}"
        )


def batch_of(batch: Any, name: str) -> Examples:
    """The examples of a batch: a pair (inputs, targets), or a mapping with one of `TARGETS`."""
    if isinstance(batch, Examples):
        return batch
    if isinstance(batch, Mapping):
        batch = inputs_and_targets(batch, name)
    if not isinstance(batch, tuple | list) or len(batch) != 2:
        raise DataError(
            f"{name}: a batch must be (inputs, targets) or a dict with labels, not {type(batch).__name__}"
        )
    inputs, targets = (_tensors(part, name) for part in batch)
    if isinstance(targets, torch.Tensor) and are_scalar_labels(targets):
        targets = targets.to(torch.int64)
    made = Examples(inputs, targets)
    lengths = {tensor.shape[:1] for tensor in tensors_of(made)}
    if len(lengths) != 1 or not sum(*lengths):
        shapes = ", ".join(str(tuple(tensor.shape)) for tensor in tensors_of(made))
        raise DataError(
            f"{name}: a batch has tensors of shapes {shapes}; give each as many examples, at least one"
        )
    return made


def inputs_and_targets(named: Mapping[str, Any], name: str) -> tuple[dict[str, Any], Any]:
    """The inputs by name, and the targets, which have one of the names `TARGETS`; raises `DataError`."""
    target = next((key for key in TARGETS if key in named), None)
    if target is None or len(named) < 2:
        raise DataError(f"{name}: a batch of {', '.join(map(str, named))} needs inputs, and targets called labels")
    return {key: value for key, value in named.items() if key != target}, named[target]


def _tensors(part: Any, name: str) -> Any:
    if isinstance(part, Mapping):
        return {key: _tensors(value, name) for key, value in part.items()}
    return part if isinstance(part, torch.Tensor) else _stacked(part, name)


def _stacked(values: Any, name: str) -> Any:
    """Stack tensors, arrays, pictures or numbers of the same shape to a tensor (examples, *); dicts by name."""
    if isinstance(values, np.ndarray) and values.ndim and values.dtype.kind in "biuf":
        return torch.from_numpy(values)
    if not isinstance(values, Sequence | np.ndarray) or isinstance(values, str):
        raise DataError(f"{name}: a batch holds a {type(values).__name__} where an array of examples belongs")
    if len(values) and isinstance(values[0], Mapping):
        return {key: _stacked([value[key] for value in values], name) for key in values[0]}
    try:
        return torch.stack([v if isinstance(v, torch.Tensor) else torch.from_numpy(np.array(v)) for v in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(
            f"{name}: examples do not stack to one array: {one_line(error)}; pad them by --collate FILE.py:fn"
        ) from error
