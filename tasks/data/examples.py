"""Examples as inputs and targets, the batches that are drawn from them, and checks of their values."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import DataError
from roundweave.storage.values.digests import tensor_digest
from roundweave.storage.values.tensors import Record
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.numerics.pieces import is_finite
from roundweave.tasks.numerics.unofficial import first_of_permutation

Tensors = Any
"""One tensor ``(example, *)``, or a dict of several by name."""

IGNORED = -100
"""The label of a place, such as padding, that losses and scores leave out, as in torch."""

MANY = 1 << 8
"""A pass over this many times the examples that are used is not drawn as a whole."""

Move = Callable[[torch.Tensor], torch.Tensor]
"""Brings a tensor to a device."""


@dataclass(frozen=True)
class Examples(Record):
    """Examples of one partition or batch, in memory.

    Args:
        inputs: The inputs ``(example, *)`` of the network. Several tensors by name are its keyword arguments.
        targets: The targets ``(example, *)``: int64 labels, or numbers.

    Example:
        >>> len(rw.Examples(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)))
    """

    inputs: Tensors
    targets: Tensors

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(first_tensor(self.inputs))

    def read(self, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,)."""
        index = torch.from_numpy(rows)
        return moved(self, lambda tensor: tensor.index_select(0, index))

    def items(self, rows: np.ndarray) -> list[Any]:
        """Return the examples at some rows, int64 (row,), as pairs of input and target."""
        read = self.read(rows)
        each = [moved(read, lambda tensor: tensor[place]) for place in range(len(rows))]  # noqa: B023 - used at once
        return [(one.inputs, one.targets) for one in each]

    def evidence(self) -> list[Any]:
        """Return what shows that a replay has the same examples, as JSON: the digests of their tensors."""
        return [tensor_digest("", tensor) for tensor in tensors_of(self)]

    def on(self, move: Move) -> Examples:
        """Return the examples with tensors that `move` has brought to a device."""
        return moved(self, move)

    def first(self, count: int) -> Examples:
        """Return the first examples, at most so many."""
        return moved(self, lambda tensor: tensor[:count])

    def every(self, step: int) -> Examples:
        """Return every `step`-th example, beginning with the first."""
        return moved(self, lambda tensor: tensor[::step])

    def slices(self, size: int) -> Iterator[Examples]:
        """Yield all examples in order, in batches of `size`. The last batch may be smaller."""
        for start in range(0, len(self), size):
            yield moved(self, lambda tensor: tensor[start : start + size])  # noqa: B023 - used at once

    def batches(self, size: int | None, steps: int, seed: int, whole: int = 1) -> Iterator[Examples]:
        """Draw so many batches; see `roundweave.batches`."""
        used = used_of(len(self), whole)
        if used == len(self) <= (size or used):
            yield from [self] * steps
            return
        size = min(size or used, used)
        full = moved(self, lambda tensor: tensor.new_empty((size, *tensor.shape[1:])))
        for order in passes(len(self), size, steps, seed, used):
            # Move whole orders to a device: each transfer waits for the device.
            for rows in order.to(first_tensor(self.inputs).device).split(size):
                batch = full if len(rows) == size else full.first(len(rows))
                for source, target in zip(tensors_of(self), tensors_of(batch), strict=True):
                    torch.index_select(source, 0, rows, out=target)
                yield batch


def used_of(examples: int, whole: int) -> int:
    """Return the number of examples that a pass takes: the greatest multiple. Raises `DataError` if that is 0."""
    if 1 < whole > examples:
        less = f"a partition of {examples} examples has less than one batch of {whole}, which drop_last drops"
        raise DataError(f"{less}; give a smaller batch_size, or leave drop_last out")
    return examples - examples % whole


def passes(examples: int, size: int | None, steps: int, seed: int, used: int = 0) -> Iterator[torch.Tensor]:
    """Yield the rows, (row,), of each pass over so many examples. All passes together are `steps` batches.

    A pass takes `used` examples; 0 takes all.
    """
    used = used or examples
    if size is None or used == examples <= size:
        yield from [torch.arange(examples)] * steps
        return
    if 0 < steps * size * MANY < examples:  # the same rows, faster
        yield first_of_permutation(examples, steps * size, seed)
        return
    generator = torch.Generator().manual_seed(seed)
    for done in range(0, steps, -(-used // size)):
        yield torch.randperm(examples, generator=generator)[: min(used, (steps - done) * size)]


def grouped_passes(groups: np.ndarray, size: int, steps: int, seed: int, used: int) -> Iterator[np.ndarray]:
    """Do as `passes`, with the rows of a group one after the other, because a group is read together.

    `groups` is the group of each example, int64 (example,). The order of the groups is random, and so is the order
    of the rows in each group.
    """
    generator = np.random.default_rng(seed)
    _, places = np.unique(groups, return_inverse=True)
    for done in range(0, steps, -(-used // size)):
        rank = generator.permutation(places.max() + 1)[places]
        order = np.lexsort((generator.permutation(len(groups)), rank))
        yield order[: min(used, (steps - done) * size)]


def tensors_by_name(examples: Examples) -> dict[str, torch.Tensor]:
    """Return the tensors ``(example, *)`` of inputs and targets: ``inputs``, or ``inputs a`` for several."""
    named: dict[str, torch.Tensor] = {}
    for kind, part in (("inputs", examples.inputs), ("targets", examples.targets)):
        several = isinstance(part, Mapping)
        named |= {f"{kind} {name}": tensor for name, tensor in part.items()} if several else {kind: part}
    return named


def tensors_of(examples: Examples) -> list[torch.Tensor]:
    """Return the tensors ``(example, *)`` of examples: first those of the inputs, then those of the targets."""
    return list(tensors_by_name(examples).values())


def single(tensors: Tensors, what: str) -> torch.Tensor:
    """Return the tensor of inputs or targets. Raises `DataError` for several, which `what` cannot take."""
    if isinstance(tensors, torch.Tensor):
        return tensors
    raise DataError(f"{what} needs examples of one tensor, not of {', '.join(tensors)}")


def first_tensor(tensors: Any) -> torch.Tensor:
    """Return a tensor, or the first of several by name."""
    return tensors if isinstance(tensors, torch.Tensor) else next(iter(tensors.values()))


def check_values(examples: Examples, name: str, numbers: np.ndarray | None = None) -> Examples:
    """Return the examples. Raise `DataError` for the first non-finite number or negative label.

    `numbers`, int64 (example,), are the numbers of the examples in the message; by default they count from 0.
    """
    called: Callable[[int], int] = int if numbers is None else numbers.item
    for kind, tensor in tensors_by_name(examples).items():
        if tensor.is_floating_point() and not is_finite(tensor):
            bad = torch.nonzero(~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1))
            which = f"{len(bad)} of {len(tensor)} examples have NaN or infinite {kind}"
            raise DataError(f"{name}: {which}, the first is number {called(int(bad[0]))}; remove or fill them")
    labels = examples.targets
    if isinstance(labels, torch.Tensor) and are_scalar_labels(labels) and int(labels.min()) < 0:
        least = int(labels.argmin())
        label = f"label {int(labels[least])} of example {called(least)}"
        raise DataError(f"{name}: {label} is out of range; labels start at 0, and quantities are floats")
    return examples


def are_scalar_labels(targets: torch.Tensor) -> bool:
    """Tell whether targets ``(example, *)`` are class labels (example,), one integer for each example."""
    return targets.ndim == 1 and not targets.is_floating_point() and targets.dtype != torch.bool


def are_labels(targets: torch.Tensor) -> bool:
    """Tell whether targets are class labels: (example,), or one label per place, such as (example, time).

    If an example has several integers, and some are below 0 but not `IGNORED`, they are numbers and no labels.
    """
    if targets.ndim == 1 or not are_scalar_labels(targets.flatten()):
        return are_scalar_labels(targets)
    return bool(((targets >= 0) | (targets == IGNORED)).all())
