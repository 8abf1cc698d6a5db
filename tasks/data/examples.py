"""Examples as inputs and targets, data sets of them, and checks of their values."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
import torch

from storage.errors import DataError
from storage.values.tensors import Record


@dataclass(frozen=True)
class Examples(Record):
    """Examples of one partition or batch.

    Args:
        inputs: The inputs (example, *) of the network.
        targets: The targets (example, *): int64 labels, or numbers.

    Example:
        >>> len(rw.Examples(torch.zeros(5, 3), torch.zeros(5, dtype=torch.int64)))
    """

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Dataset(Record):
    """All examples of a source, as they are stored.

    Args:
        train: The examples to train on, and to hold out from if `held_out` is None.
        held_out: The examples to score with.
        scaling: Divisor, mean and deviation; inputs are (x / divisor - mean) / deviation where they are used.
        columns: Numbers or texts (example,) of the training examples by name, which splits may read.
        classes: The number of classes if there are more than the targets show, as in a vocabulary; else 0.
        class_names: The labels' names before they were coded as numbers.

    Example:
        >>> examples = rw.Examples(torch.zeros(6, 3), torch.arange(6) % 2)
        >>> dataset = rw.Dataset(examples, class_names=("even", "odd"))
    """

    train: Examples
    held_out: Examples | None = None
    scaling: tuple[float, float, float] | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    classes: int = 0
    class_names: tuple[str, ...] = ()

    def take(self, rows: np.ndarray, dtype: str, held_out: bool = False) -> Examples:
        """Some `rows` (examples,) with scaled inputs, (x / divisor - mean) / deviation, and floats in `dtype`."""
        examples = self.held_out if held_out and self.held_out else self.train
        index = torch.from_numpy(rows)
        inputs = examples.inputs.index_select(0, index)
        if self.scaling:
            divisor, mean, deviation = self.scaling
            inputs = ((inputs.to(torch.float32) / divisor) - mean) / deviation
        return Examples(_cast(inputs, dtype), _cast(examples.targets.index_select(0, index), dtype))


def _cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


def check_values(examples: Examples, name: str) -> None:
    """Raise `DataError` for a non-finite number or a negative label, naming the first example that has one."""
    for kind, tensor in (("inputs", examples.inputs), ("targets", examples.targets)):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            bad = torch.nonzero(~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1))
            raise DataError(
                f"{name}: {len(bad)} of {len(tensor)} examples have NaN or infinite {kind}, "
                f"the first is number {bad[0].item()}; remove or fill them"
            )
    if are_scalar_labels(examples.targets) and int(examples.targets.min()) < 0:
        worst = int(examples.targets.argmin())
        raise DataError(
            f"{name}: label {int(examples.targets[worst])} of example {worst} is out of range; labels start at 0"
        )


def check_alike(dataset: Dataset, name: str) -> None:
    """Raise `DataError` if the held-out examples have another shape or type than the training examples."""
    if dataset.held_out is None:
        return
    for kind in ("inputs", "targets"):
        train, held_out = (_described(getattr(part, kind)) for part in (dataset.train, dataset.held_out))
        if train != held_out:
            raise DataError(
                f"{name}: {kind} held out are {held_out}, and those to train on {train}; make them alike"
            )


def _described(tensor: torch.Tensor) -> str:
    number = "numbers" if tensor.is_floating_point() else "integers"
    return f"{number} of shape {tuple(tensor.shape[1:])}"


def are_scalar_labels(targets: torch.Tensor) -> bool:
    """Whether targets (examples, *) are class labels (examples,), one integer for each example."""
    return targets.ndim == 1 and not targets.is_floating_point() and targets.dtype != torch.bool


def are_labels(targets: torch.Tensor) -> bool:
    """Whether targets are class labels: one an example, (examples,), or one a place, such as (examples, time).

    If an example has several integers, and some are below 0, they count as numbers and not as labels.
    """
    return are_scalar_labels(targets.flatten()) and (targets.ndim == 1 or int(targets.min()) >= 0)
