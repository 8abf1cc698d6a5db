"""Counts the values of a data set column by column, where they lie; only counts and moments are sent."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from contextlib import suppress

import numpy as np
import torch

from roundweave.storage.errors import DataError
from roundweave.storage.rounds.columns import INFINITE, Column
from roundweave.storage.values.tensors import dtype_name
from roundweave.tasks.data.datasets import Dataset, Reader, targets_of
from roundweave.tasks.data.examples import Examples, are_labels, tensors_by_name
from roundweave.tasks.data.stored_files import FileReader

ROWS = 10_000
"""At most so many evenly spread rows are looked at, by which a share is known to a hundredth."""

BYTES = 1 << 23
"""The rows that are looked at have at most so many bytes, but for a single one, such as those of 10,000 digits."""

PLACES, ROWS_OF_PLACE = 4, 128
"""Of files that are larger than memory so many places are read, and so many rows of each."""

INDEXED = 64
"""Of a flat array without names of columns each column is counted, if there are no more; else all as one."""

CATEGORIES = 100
"""A column of more different texts holds names of examples, and no categories."""

TARGETS = "targets"


def columns_of(dataset: Dataset) -> dict[str, Column]:
    """The columns of the examples to train on, as they are stored, and of the targets; all labels are counted."""
    counted = {name: Counter(map(str, values.tolist())) for name, values in dataset.columns.items()}
    columns = {
        name: Column("category", each.total(), categories=dict(each))
        for name, each in counted.items()
        if len(each) <= CATEGORIES
    }
    looked, known = _looked_at(dataset.train), targets_of(dataset.train)
    given = tensors_by_name(looked) if looked else {}
    for name, tensor in given.items():
        if not name.startswith(TARGETS):
            columns |= _columns(name, tensor, dataset.input_names, given.get(TARGETS))
    targets = {name: tensor for name, tensor in given.items() if name.startswith(TARGETS)}
    if known is not None and known.ndim == 1:
        targets = {TARGETS: known}
    return columns | {name: _target(tensor) for name, tensor in targets.items()}


def _looked_at(part: Examples | Reader) -> Examples | None:
    """Evenly spread examples; None of what other readers read, of which each may take long."""
    if isinstance(part, Examples):
        return part
    if not isinstance(part, FileReader) or not len(part):
        return None
    starts = np.linspace(0, len(part), PLACES + 1).astype(int) if part.starts is None else np.unique(part.starts)
    every = -(-(len(starts) - 1) // PLACES)
    spans = [np.arange(*starts[place : place + 2]) for place in range(0, len(starts) - 1, every)]
    with suppress(DataError):  # what cannot be read refuses its partition in the round that needs it
        return part.read(np.concatenate([span[:: -(-len(span) // ROWS_OF_PLACE) or 1] for span in spans]))
    return None


def _columns(
    name: str, tensor: torch.Tensor, names: Sequence[str], targets: torch.Tensor | None
) -> dict[str, Column]:
    """The columns of inputs (example, *): by name or index if they are flat, else all values as one.

    Integers of the shape of their targets are tokens, of which it does not matter where they stand.
    """
    tensor = tensor[:: max(1, -(-len(tensor) // ROWS), -(-tensor.nbytes // BYTES))]
    flat = tensor.reshape(len(tensor), -1) if tensor.numel() else tensor.reshape(len(tensor), 0)
    tokens = targets is not None and targets.shape[1:] == tensor.shape[1:] and not tensor.is_floating_point()
    if len(names) == flat.shape[1]:
        labels = [each if each != TARGETS else f"{name} {each}" for each in names]
    elif tensor.ndim == 2 and flat.shape[1] <= INDEXED and not tokens:
        labels = [f"{name} {place}" for place in range(flat.shape[1])]
    else:
        return {name: _numbers(flat)}
    return {label: _numbers(column) for label, column in zip(labels, flat.T, strict=True)}


def _target(tensor: torch.Tensor) -> Column:
    if not are_labels(tensor):
        return _numbers(tensor[:: max(1, -(-tensor.nbytes // BYTES))])
    values, counts = np.unique(tensor.numpy(), return_counts=True)
    categories = dict(zip(map(str, values.tolist()), counts.tolist(), strict=True))
    return Column("category", len(tensor), categories=categories)


def _numbers(tensor: torch.Tensor) -> Column:
    """The column of the numbers of a tensor (example, *)."""
    weights = None
    if tensor.dtype in (torch.uint8, torch.bool):  # of which there are few different ones
        counts = torch.bincount(tensor.flatten().byte()).numpy()
        values, weights = np.flatnonzero(counts).astype(np.float64), counts[counts > 0]
    else:
        every = tensor.flatten().double().numpy()
        values = every[~np.isnan(every)]
    bits = (values + 0.0).view(np.int64) >> 48  # a sum with 0.0 is never -0.0
    keys = np.where(bits < 0, -(bits & 0x7FFF), bits)
    counted = np.bincount(keys + INFINITE, weights)
    (places,) = counted.nonzero()
    bins = dict(zip((places - INFINITE).tolist(), map(int, counted[places]), strict=True))
    missing = 0 if weights is not None else tensor.numel() - len(values)
    return Column(dtype_name(tensor.dtype), len(tensor), missing, bins, {}, *_moments(values, weights))


def _moments(values: np.ndarray, weights: np.ndarray | None) -> tuple[float, float]:
    """The mean and the deviation of the finite ones of some numbers (value,), whose squares may be infinite."""
    finite = np.isfinite(values)
    weights, values = None if weights is None else weights[finite], values[finite]
    scale = float(np.abs(values).max(initial=0.0)) or 1.0
    if not len(values):
        return 0.0, 0.0
    mean = np.average(values / scale, weights=weights)
    variance = np.average((values / scale - mean) ** 2, weights=weights)
    return float(mean * scale), float(np.sqrt(variance) * scale)
