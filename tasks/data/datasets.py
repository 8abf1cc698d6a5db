"""Data sets: all examples of a source, in memory or read where they are used."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import DataError
from roundweave.storage.values.hashing import json_digest
from roundweave.storage.values.tensors import Record
from roundweave.tasks.data.examples import IGNORED, Examples, Tensors, first_tensor, tensors_by_name, tensors_of
from roundweave.tasks.data.meaning import Meaning
from roundweave.tasks.numerics.devices import moved


class Reader:
    """Base class of examples that are read where they are used, and are not held in memory.

    A subclass defines ``__len__`` and `read`.

    Example:
        >>> import numpy as np
        >>> import torch
        >>> import roundweave as rw
        >>> class Squares(rw.Reader):
        ...     def __len__(self):
        ...         return 10
        ...     def read(self, rows):
        ...         numbers = torch.from_numpy(rows).float()[:, None]
        ...         return rw.Examples(numbers, numbers**2)
        >>> rw.Dataset(Squares()).take(np.array([2, 3]), "float32").targets.flatten()
        tensor([4., 9.])
    """

    def __len__(self) -> int:
        """Return the number of examples."""
        raise NotImplementedError

    def read(self, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,), as tensors ``(row, *)``. Raises `DataError`."""
        raise NotImplementedError

    def items(self, rows: np.ndarray) -> list[Any]:
        """Return the examples at some rows, int64 (row,), one by one: pairs of input and target, or dicts."""
        return self.read(rows).items(np.arange(len(rows)))

    @property
    def targets(self) -> Tensors | None:
        """All targets ``(example, *)``, which a split by labels needs; None if unknown without reading."""
        return None

    @property
    def classes(self) -> int:
        """The number of classes if `targets` are None and the number is known, as of masks; else 0."""
        return 0

    @property
    def groups(self) -> np.ndarray | None:
        """The group of each example, int64 (example,), if the examples of a group are read together; else None."""
        return None

    @property
    def files(self) -> Mapping[str, str]:
        """What shows that each file is unchanged, such as its size and a digest, by the file's name."""
        return {}

    def evidence(self) -> list[Any]:
        """Return what shows that a replay reads the same bytes, as JSON. The default is `files`."""
        return [dict(self.files)] if self.files else []


@dataclass(frozen=True)
class Arranging:
    """An order of input columns and of labels: the new column n is the old column ``columns[n]``, int64 (column,).

    Label n becomes number ``labels[n]``, int64 (class,), and label -100 stays. None keeps the order.
    """

    columns: torch.Tensor | None = None
    labels: torch.Tensor | None = None

    def inputs(self, inputs: Any) -> Any:
        """Return inputs ``(*, column)`` in this order. Inputs by name have no order."""
        turned = self.columns is not None and not isinstance(inputs, Mapping)
        return inputs[..., self.columns] if turned else inputs

    def targets(self, targets: Any) -> Any:
        """Return labels ``(*)`` with these numbers."""
        if self.labels is None:
            return targets
        labels = torch.as_tensor(targets)
        return torch.where(labels == IGNORED, IGNORED, self.labels[labels.clamp(min=0)])

    def examples(self, part: Examples) -> Examples:
        """Return examples in this order."""
        return Examples(self.inputs(part.inputs), self.targets(part.targets))

    def evidence(self) -> list[Any]:
        """Return the numbers as JSON."""
        return [each if each is None else each.tolist() for each in (self.columns, self.labels)]


@dataclass(frozen=True, eq=False)
class Arranged(Reader):
    """A part of a data set with its columns and labels in an order."""

    part: Reader
    arranging: Arranging

    def __len__(self) -> int:
        return len(self.part)

    def read(self, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,)."""
        return self.arranging.examples(self.part.read(rows))

    def items(self, rows: np.ndarray) -> list[Any]:
        """Return the examples at some rows, int64 (row,), as the part gives them.

        Raises `DataError` unless they are pairs.
        """
        items = self.part.items(rows)
        if self.arranging.labels is None and all(isinstance(each, Mapping) for each in items):
            return items
        if not all(isinstance(each, tuple | list) and len(each) == 2 for each in items):
            raise DataError(
                "partitions name different labels, and examples that are no pairs of input and label do not say "
                "which is theirs; give all partitions the same names"
            )
        return [(self.arranging.inputs(inputs), self.arranging.targets(label)) for inputs, label in items]

    @property
    def targets(self) -> Tensors | None:
        """All labels (example,), if they are known."""
        known = self.part.targets
        return known if known is None else self.arranging.targets(known)

    @property
    def classes(self) -> int:
        """The number of classes that the part shows."""
        return self.part.classes

    @property
    def groups(self) -> np.ndarray | None:
        """The groups of the part."""
        return self.part.groups

    @property
    def files(self) -> Mapping[str, str]:
        """The files of the part."""
        return self.part.files

    def evidence(self) -> list[Any]:
        """Return the evidence of the part, and the order."""
        return [*self.part.evidence(), *self.arranging.evidence()]


@dataclass(frozen=True)
class Dataset(Record):
    """All examples of a source, as they are stored.

    Args:
        train: The examples to train on, or their reader. If `held_out` is None, some of them are held out.
        held_out: The examples to score with, or their reader.
        scaling: Divisor, mean and deviation. Inputs become (x / divisor - mean) / deviation where they are used.
        columns: Numbers or texts (example,) of the training examples by name. Splits may read them.
        classes: The number of classes if the targets do not show all of them, as in a vocabulary; else 0.
        class_names: The names of the labels before they were coded as numbers.
        input_names: The names of the table columns that make the inputs, in order; empty without a table.

    Example:
        >>> examples = rw.Examples(torch.zeros(6, 3), torch.arange(6) % 2)
        >>> dataset = rw.Dataset(examples, class_names=("even", "odd"))
    """

    train: Examples | Reader
    held_out: Examples | Reader | None = None
    scaling: tuple[float, float, float] | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)
    classes: int = 0
    class_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()

    @property
    def meaning(self) -> Meaning:
        """The names of the labels and of the columns."""
        return Meaning(self.class_names, self.input_names)

    def part(self, held_out: bool) -> Examples | Reader:
        """Return the examples to train on, or those to score with if the source gives some."""
        return self.held_out if held_out and self.held_out is not None else self.train

    def take(self, rows: np.ndarray, dtype: str, held_out: bool = False) -> Examples:
        """Return some `rows`, int64 (example,), in memory, as `finished` gives them."""
        return self.finished(self.part(held_out).read(rows), dtype)

    def finished(self, batch: Examples, dtype: str) -> Examples:
        """Return a batch with scaled inputs, (x / divisor - mean) / deviation, and floats in `dtype`."""
        inputs, scaling = batch.inputs, self.scaling
        if not isinstance(self.train, Examples):
            scaling = pixel_scaling(inputs)
        elif first_tensor(inputs).is_floating_point() and not first_tensor(self.train.inputs).is_floating_point():
            scaling = None  # a transform has scaled the stored bytes itself
        kind = getattr(torch, dtype)
        if scaling:
            divisor, mean, deviation = scaling
            wide = torch.promote_types(torch.float32, kind)
            # In one place, as new memory takes longer than the arithmetic.
            inputs = moved(inputs, lambda t: t.to(wide, copy=True).div_(divisor).sub_(mean).div_(deviation))
        return moved(Examples(inputs, batch.targets), lambda t: t.to(kind) if t.is_floating_point() else t)

    def arranged(self, meaning: Meaning) -> Dataset:
        """Return the same examples with columns and labels in the order of their names in `meaning`."""
        mine = self.meaning
        wanted = meaning.put_first(mine)
        columns = [mine.input_names.index(name) for name in wanted.input_names]
        labels = [wanted.class_names.index(name) for name in mine.class_names]
        numbers = (None if each == [*range(len(each))] else torch.tensor(each) for each in (columns, labels))
        names: dict[str, Any] = {"class_names": wanted.class_names, "input_names": wanted.input_names}
        named = replace(self, classes=max(self.classes, len(wanted.class_names)), **names)
        arranging = Arranging(*numbers)
        if arranging == Arranging():
            return named
        parts = [
            arranging.examples(part) if isinstance(part, Examples) else Arranged(part, arranging)
            for part in self.parts
        ]
        return replace(named, train=parts[0], held_out=parts[1] if parts[1:] else None)

    @property
    def parts(self) -> list[Examples | Reader]:
        """The examples to train on and, if given, those to score with."""
        return [self.train] if self.held_out is None else [self.train, self.held_out]

    @property
    def nbytes(self) -> int:
        """The bytes of the examples in memory."""
        in_memory = [part for part in self.parts if isinstance(part, Examples)]
        return sum(tensor.nbytes for part in in_memory for tensor in tensors_of(part))

    @functools.cached_property
    def digest(self) -> str:
        """The digest of all examples in memory, of the evidence of examples that are read, and of the columns.

        It is computed on demand: the processes of a loader need not read the bytes.
        """
        parts = [piece for part in self.parts for piece in part.evidence()]
        columns = [json_digest([name, self.columns[name].tolist()]) for name in sorted(self.columns)]
        return json_digest(parts + columns)

    @property
    def files(self) -> dict[str, str]:
        """What shows that each file that is read where it is used is unchanged, by its name."""
        readers = [part for part in self.parts if isinstance(part, Reader)]
        return {name: shown for reader in readers for name, shown in reader.files.items()}


def pixel_scaling(inputs: Tensors) -> tuple[float, float, float] | None:
    """Return the scaling of inputs that are pixels: bytes (examples, height, width) or more dimensions.

    Else None.
    """
    pixels = isinstance(inputs, torch.Tensor) and inputs.dtype == torch.uint8 and inputs.ndim > 2
    return PIXELS if pixels else None


PIXELS = (255.0, 0.0, 1.0)
"""The divisor, mean and deviation that scale bytes to the range 0 to 1."""


def targets_of(part: Examples | Reader) -> torch.Tensor | None:
    """Return all targets (example, *) of a part, one tensor.

    None if they are several or not known without reading.
    """
    targets = part.targets
    return targets if isinstance(targets, torch.Tensor) else None


def differing_files(then: Mapping[str, str], now: Mapping[str, str]) -> str:
    """Return a text that says which file is not as it was; empty if all are."""
    name = next((name for name in sorted({**then, **now}) if then.get(name) != now.get(name)), None)
    if name is None:
        return ""
    return f"{name} {'is new' if name not in then else 'is gone' if name not in now else 'has changed'}"


def check_alike(dataset: Dataset, name: str) -> None:
    """Raise `DataError` if the held-out examples have another shape or type than the training examples."""
    described = [_described(part) for part in dataset.parts if isinstance(part, Examples)]
    for kind in {**described[0], **described[1]} if len(described) == 2 else {}:
        train, held_out = (each.get(kind, "missing") for each in described)
        if train != held_out:
            both = f"{kind} held out are {held_out}, and those to train on {train}"
            raise DataError(f"{name}: {both}; make them alike")


def _described(examples: Examples) -> dict[str, str]:
    return {
        name: f"{'numbers' if tensor.is_floating_point() else 'integers'} of shape {tuple(tensor.shape[1:])}"
        for name, tensor in tensors_by_name(examples).items()
    }
