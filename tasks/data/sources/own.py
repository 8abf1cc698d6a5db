"""Examples from a function of the user's."""

from __future__ import annotations

import inspect
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from storage.errors import DataError, one_line
from tasks.data.examples import Dataset, Examples, check_values
from tasks.data.sources.base import Source
from tasks.user_code import Code


@dataclass(frozen=True)
class Own(Source):
    """The user's function: ``f()`` gives everything, ``f(partition, partitions)`` one partition."""

    code: Code

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
        name = self.code.reference
        try:
            value = self.code.load()(*((partition, partitions) if self.partitioned else ()))
        except Exception as error:
            raise DataError(f"{name} failed with {one_line(error)}") from error
        pairs = _pairs(value, name)
        train = _examples(*pairs[0], name)
        held_out = _examples(*pairs[1], name) if len(pairs) == 2 else None
        if not self.partitioned:
            for examples in filter(None, (train, held_out)):
                check_values(examples, name)
        return Dataset(train, held_out)


def _pairs(value: Any, name: str) -> list[tuple[Any, Any]]:
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


def _examples(inputs: Any, targets: Any, name: str) -> Examples:
    examples = Examples(_tensor(inputs, name), _tensor(targets, name))
    if not len(examples.inputs) or len(examples.inputs) != len(examples.targets):
        raise DataError(f"{name} gives {len(examples.inputs)} inputs and {len(examples.targets)} targets")
    return examples


def _tensor(value: Any, name: str) -> torch.Tensor:
    try:
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} gives a {type(value).__name__} that is no array: {error}") from error
    if tensor.ndim == 0:
        raise DataError(f"{name} gives a single number where an array of examples belongs")
    return tensor.contiguous()
