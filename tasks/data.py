"""Where examples come from, checked before anything is trained on them."""

from __future__ import annotations

import importlib.util
import inspect
from collections.abc import Hashable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import torch

from storage.errors import DataError, one_line
from storage.records import Record, dtype_name
from tasks.idx import IDX_SETS, read_images, read_labels
from tasks.user_code import Code


@dataclass(frozen=True)
class Examples(Record):
    """Inputs (examples, *) and targets (examples, *) of one partition or batch."""

    inputs: torch.Tensor
    targets: torch.Tensor

    def __len__(self) -> int:
        return len(self.inputs)


@dataclass(frozen=True)
class Dataset(Record):
    """All examples of a source, as stored; `scaling` (divisor, mean, deviation) applies when they are used."""

    train: Examples
    held_out: Examples | None = None
    scaling: tuple[float, float, float] | None = None

    def take(self, rows: np.ndarray, dtype: str, held_out: bool = False) -> Examples:
        """Some rows, ready to train on: scaled, as (x / divisor - mean) / deviation, and floats in `dtype`."""
        examples = self.held_out if held_out and self.held_out else self.train
        index = torch.from_numpy(rows)
        inputs = examples.inputs.index_select(0, index)
        if self.scaling:
            divisor, mean, deviation = self.scaling
            inputs = ((inputs.to(torch.float32) / divisor) - mean) / deviation
        return Examples(_cast(inputs, dtype), _cast(examples.targets.index_select(0, index), dtype))


def _cast(tensor: torch.Tensor, dtype: str) -> torch.Tensor:
    return tensor.to(getattr(torch, dtype)) if tensor.is_floating_point() else tensor


class Source(Hashable, Protocol):
    """Where examples come from."""

    @property
    def partitioned(self) -> bool:
        """Whether each partition is loaded on its own, because all together may be too big for one machine."""
        ...

    def load(self, partition: int, partitions: int) -> Dataset:
        """One partition where `partitioned`, else everything; raises `DataError`."""
        ...


@dataclass(frozen=True)
class Digits:
    """The 1797 handwritten digits of 8 x 8 pixels that come with scikit-learn."""

    partitioned = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Inputs (1797, 1, 8, 8) from 0 to 1, labels 0 to 9."""
        # The file alone: importing scikit-learn takes longer than a short run's first round.
        spec = importlib.util.find_spec("sklearn")
        if spec is None or spec.origin is None:
            raise DataError("the digits come with scikit-learn, which is not installed")
        table = np.loadtxt(Path(spec.origin).parent / "datasets" / "data" / "digits.csv.gz", delimiter=",")
        images = torch.from_numpy(table[:, :-1]).to(torch.float32).reshape(-1, 1, 8, 8) / 16
        return Dataset(Examples(images, torch.from_numpy(table[:, -1]).to(torch.int64)))


@dataclass(frozen=True)
class Idx:
    """MNIST or Fashion-MNIST: the four IDX files in a folder, compressed by gzip or not."""

    name: str
    folder: str
    partitioned = False

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """60,000 training and 10,000 held-out images (1, 28, 28), labels 0 to 9."""
        train, test = (
            Examples(read_images(self.folder, part), read_labels(self.folder, part)) for part in ("train", "t10k")
        )
        for part, examples in (("train", train), ("t10k", test)):
            if len(examples.inputs) != len(examples.targets):
                raise DataError(
                    f"{self.folder}: {len(examples.inputs)} {part} images but {len(examples.targets)} labels; "
                    "fetch the files again"
                )
        return Dataset(train, test, IDX_SETS[self.name])


@dataclass(frozen=True)
class Own:
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


def check_values(examples: Examples, name: str) -> None:
    """Raise `DataError` for a non-finite number or a negative label, naming the first example that has one."""
    for kind, tensor in (("inputs", examples.inputs), ("targets", examples.targets)):
        if tensor.is_floating_point() and not torch.isfinite(tensor).all():
            bad = torch.nonzero(~torch.isfinite(tensor.reshape(len(tensor), -1)).all(1))
            raise DataError(
                f"{name}: {len(bad)} of {len(tensor)} examples have NaN or infinite {kind}, "
                f"the first is number {bad[0].item()}; "
                "remove or fill them"
            )
    if is_label(examples.targets) and int(examples.targets.min()) < 0:
        worst = int(examples.targets.argmin())
        raise DataError(
            f"{name}: label {int(examples.targets[worst])} of example {worst} is out of range; labels start at 0"
        )


def is_label(targets: torch.Tensor) -> bool:
    """Whether targets are class labels: one integer an example."""
    return targets.ndim == 1 and not targets.is_floating_point() and dtype_name(targets.dtype) != "bool"
