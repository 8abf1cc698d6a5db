"""Examples from a user's function, in any of the forms that it may return."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.errors import DataError, failing_as, one_line
from tasks.data.collating import examples_of, inputs_and_targets, needed
from tasks.data.datasets import Dataset
from tasks.data.examples import Examples, check_values
from tasks.data.sources.data_sets import dataset_of, is_data_set
from tasks.data.sources.table import Source
from tasks.user_code import Code


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
        return needed(self.code.load()) == 2

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """What the function gives, checked for NaN and bad labels unless it is `partitioned`."""
        dataset = self.again(partition, partitions)
        for examples in [] if self.partitioned else dataset.parts:
            if isinstance(examples, Examples):
                check_values(examples, str(self))
        return dataset

    def again(self, partition: int, partitions: int) -> Dataset:
        """Call the function and turn its value into tensors."""
        name = str(self)
        with failing_as(lambda error: DataError(f"{name} failed with {one_line(error)}")):
            value = self.code.load()(*((partition, partitions) if self.partitioned else ()))
        if isinstance(value, Dataset):
            return value
        parts = value if _is_pair(value) else [value]
        if all(map(is_data_set, parts)):
            return dataset_of(parts, name)
        train, *held_out = [examples_of(inputs, targets, name) for inputs, targets in _pairs(value, name)]
        return Dataset(train, held_out[0] if held_out else None)


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _pairs(value: Any, name: str) -> list[tuple[Any, Any]]:
    """The pairs (inputs, targets) to train on and, if given, held out; raises `DataError` for another value."""
    if isinstance(value, Mapping):
        return [inputs_and_targets(value, name)]
    if _is_pair(value):
        # A pair of numbers is an example, not a pair of inputs and targets.
        if all(_is_pair(pair) and all(hasattr(member, "__len__") for member in pair) for pair in value):
            return [tuple(pair) for pair in value]
        if not isinstance(value[0], tuple):
            return [(value[0], value[1])]
    pairs = "(inputs, targets), a pair of such pairs of which the second is held out"
    raise DataError(f"{name} must return {pairs}, or a data set of torch or Hugging Face")
