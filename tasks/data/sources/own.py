"""Examples from a user's function, in any of the forms that it may return."""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from storage.errors import DataError, failing_as, one_line
from tasks.data.examples import Dataset, check_values
from tasks.data.sources.arrays import examples_of, pixel_scaling, refuse_dicts
from tasks.data.sources.table import Source
from tasks.user_code import Code

READ_AGAIN = 8
"""The number of examples of a data set that are read a second time, as each may take long."""

TARGETS = ("label", "labels", "target", "targets")
"""Names of a Hugging Face data set's target column; if there is none of them, the last column is the target."""


@dataclass(frozen=True)
class Own(Source):
    """A user's function as a source: ``f()`` gives everything, ``f(partition, partitions)`` one partition.

    It returns (inputs, targets), a pair of such pairs of which the second is held out, a `Dataset` of ours, or a
    data set of torch or Hugging Face, or a pair of those.
    """

    code: Code

    def __str__(self) -> str:
        return self.code.reference

    @property
    def partitioned(self) -> bool:
        """Whether the function takes (partition, partitions)."""
        parameters = inspect.signature(self.code.load()).parameters.values()
        variable = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
        return sum(p.default is p.empty and p.kind not in variable for p in parameters) == 2

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Call the function and turn its value into tensors.

        Unless `partitioned`, check for NaN and bad labels.
        """
        dataset = self._read(partition, partitions)
        if not self.partitioned:
            for examples in filter(None, (dataset.train, dataset.held_out)):
                check_values(examples, self.code.reference)
        return dataset

    def again(self, partition: int, partitions: int) -> Dataset | None:
        """Call the function again; of a data set of torch or Hugging Face only the first examples are read."""
        return self._read(partition, partitions, READ_AGAIN)

    def _read(self, partition: int, partitions: int, most: int | None = None) -> Dataset:
        name = self.code.reference
        with failing_as(lambda error: DataError(f"{name} failed with {one_line(error)}")):
            value = self.code.load()(*((partition, partitions) if self.partitioned else ()))
        if isinstance(value, Dataset):
            return value
        parts = value if _is_pair(value) else [value]
        sets = all(map(_is_data_set, parts))
        pairs = [_arrays(part, name, most) for part in parts] if sets else _pairs(value, name)
        train, *held_out = [examples_of(inputs, targets, name) for inputs, targets in pairs]
        return Dataset(train, held_out[0] if held_out else None, pixel_scaling(train.inputs) if sets else None)


def _is_data_set(value: Any) -> bool:
    """Whether a value is a data set of torch, or of Hugging Face, which is recognised by its attributes."""
    columns = hasattr(value, "column_names") and hasattr(value, "with_format") and not isinstance(value, dict)
    return columns or isinstance(value, torch.utils.data.Dataset)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _pairs(value: Any, name: str) -> list[tuple[Any, Any]]:
    """The pairs (inputs, targets) to train on and, if given, held out; raises `DataError` for another value."""
    refuse_dicts(value, name)
    if _is_pair(value):
        # A pair of numbers is an example, not a pair of inputs and targets.
        if all(_is_pair(pair) and all(hasattr(member, "__len__") for member in pair) for pair in value):
            return [(inputs, targets) for inputs, targets in value]
        if not isinstance(value[0], tuple):
            return [(value[0], value[1])]
    raise DataError(
        f"{name} must return (inputs, targets) or ((inputs, targets), (held_out_inputs, held_out_targets))"
    )


def _arrays(data: Any, name: str, most: int | None) -> tuple[Any, Any]:
    """Inputs and targets (examples, *) of the first `most` examples of a torch or Hugging Face data set.

    None means all examples. Raises `DataError` for a stream and for examples that are no pairs.
    """
    if hasattr(data, "column_names"):
        return _columns(data, name, most)
    if not hasattr(data, "__len__"):
        raise DataError(f"{name} gives a stream ({type(data).__name__}); give a data set of a known length")
    pairs = [data[number] for number in range(len(data))[:most]]
    for value in (pairs, *pairs[:1]):
        refuse_dicts(value, name)
    if not pairs or not all(map(_is_pair, pairs)):
        raise DataError(f"{name}: each example of a {type(data).__name__} must be a pair (input, target)")
    inputs, targets = zip(*pairs, strict=True)
    return _stacked(inputs, name), _stacked(targets, name)


def _stacked(values: Sequence[Any], name: str) -> torch.Tensor:
    """Stack tensors, arrays, pictures or numbers of the same shape to a tensor (examples, *)."""
    try:
        return torch.stack([v if isinstance(v, torch.Tensor) else torch.from_numpy(np.array(v)) for v in values])
    except (TypeError, ValueError, RuntimeError) as error:
        raise DataError(f"{name}: examples do not stack to one array: {one_line(error)}") from error


def _columns(data: Any, name: str, most: int | None) -> tuple[Any, Any]:
    """The inputs and targets of a data set with columns.

    A single input column is taken as it is; several columns of numbers become float32 (examples, columns).
    """
    names = list(data.column_names)
    target = next((column for column in TARGETS if column in names), names[-1] if names else "")
    inputs = [column for column in names if column != target]
    if not inputs:
        raise DataError(f"{name}: the data set has the columns {names}; inputs and targets need one each")
    content = {column: np.asarray(values) for column, values in data.with_format("numpy")[:most].items()}
    for column in names:
        if content[column].dtype.kind not in "biuf":
            raise DataError(f"{name}: column {column!r} holds no numbers of one shape; code it or remove it")
    if len(inputs) == 1:
        return content[inputs[0]], content[target]
    if any(content[column].ndim != 1 for column in inputs):
        raise DataError(
            f"{name}: of the columns {', '.join(inputs)} only one can be the inputs; remove the others"
        )
    return np.stack([content[column] for column in inputs], axis=1).astype(np.float32), content[target]
