"""Examples from a function of the user's."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

from storage.errors import DataError, failing_as, one_line
from tasks.data.examples import Dataset, check_values
from tasks.data.sources.arrays import DICTS, are_dicts, examples_of, pixel_scaling
from tasks.data.sources.base import Source
from tasks.data.sources.foreign import arrays_of, is_foreign
from tasks.user_code import Code

READ_AGAIN = 8
"""Examples of a data set that are read once more, the first ones, since each may take long."""


@dataclass(frozen=True)
class Own(Source):
    """The user's function: ``f()`` gives everything, ``f(partition, partitions)`` one partition.

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
        required = [
            p for p in parameters if p.default is p.empty and p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)
        ]
        return len(required) == 2

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What the function returns, as tensors; a whole data set is checked for NaN and bad labels."""
        dataset = self._read(partition, partitions)
        if not self.partitioned:
            for examples in filter(None, (dataset.train, dataset.held_out)):
                check_values(examples, self.code.reference)
        return dataset

    def again(self, partition: int, partitions: int) -> Dataset | None:
        """What the function returns when it is called once more: a few of a data set of torch or Hugging Face."""
        return self._read(partition, partitions, READ_AGAIN)

    def _read(self, partition: int, partitions: int, most: int | None = None) -> Dataset:
        name = self.code.reference
        with failing_as(lambda error: DataError(f"{name} failed with {one_line(error)}")):
            value = self.code.load()(*((partition, partitions) if self.partitioned else ()))
        return _dataset(value, name, most)


def _dataset(value: Any, name: str, most: int | None) -> Dataset:
    if isinstance(value, Dataset):
        return value
    parts = value if isinstance(value, tuple | list) and len(value) == 2 else [value]
    foreign = all(map(is_foreign, parts))
    pairs = [arrays_of(part, name, most) for part in parts] if foreign else _pairs(value, name)
    train, *held_out = [examples_of(inputs, targets, name) for inputs, targets in pairs]
    return Dataset(train, held_out[0] if held_out else None, pixel_scaling(train.inputs) if foreign else None)


def _pairs(value: Any, name: str) -> list[tuple[Any, Any]]:
    if are_dicts(value):
        raise DataError(f"{name}: {DICTS}")
    if isinstance(value, tuple | list) and len(value) == 2:
        if all(map(_is_pair, value)):
            return [(pair[0], pair[1]) for pair in value]
        if not isinstance(value[0], tuple):
            return [(value[0], value[1])]
    raise DataError(
        f"{name} must return (inputs, targets) or ((inputs, targets), (held_out_inputs, held_out_targets))"
    )


def _is_pair(value: Any) -> bool:
    """Whether it is two collections; a pair of numbers is an example, not a pair of inputs and targets."""
    if not isinstance(value, tuple | list) or len(value) != 2:
        return False
    return all(hasattr(member, "__len__") for member in value)
