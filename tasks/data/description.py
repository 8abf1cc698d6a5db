"""The description of a run's examples, known before a network is made for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import reduce
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import DataError
from roundweave.storage.rounds.columns import INFINITE, Column, ColumnsRecord
from roundweave.storage.values.hashing import json_digest
from roundweave.storage.values.tensors import dtype_name
from roundweave.tasks.data.datasets import Dataset, Reader, pixel_scaling, targets_of
from roundweave.tasks.data.examples import Examples, Tensors, are_labels, tensors_by_name, tensors_of
from roundweave.tasks.data.meaning import Meaning, agree, agreed_kind, common
from roundweave.tasks.data.stored_files import FileReader
from roundweave.tasks.numerics.pinning import pinned

CallEach = Callable[..., list[Any]]
"""Calls a function with numbers of partitions, where their examples lie.

Returns results in order of the numbers.
"""


def gather_here(function: Callable[[int], Any], numbers: Iterable[int]) -> list[Any]:
    """Call a function with numbers of partitions in this process."""
    return list(map(function, numbers))


@dataclass(frozen=True)
class Description:
    """The facts about the examples from which a network is made. Shapes are those of one example.

    `labels` tells whether targets are class labels: one for each example, shape (), or one for each place, such as
    (time,). `class_names` are the labels' names before they were coded as numbers, and `input_names` those of a
    table's columns. If every partition has the same held-out examples, `shared` is their digest and they are
    counted once; else it is empty. `files` has what shows that each file read where it is used is unchanged, by
    its name. `target_classes` of the `classes` are labels, if sequences of tokens have further tokens. `distinct`
    is the number of labels that occur, at most in one partition, or 0 if each example has several or a data set
    lists its classes. `kind` says what stored inputs are: pixels, integers or numbers; empty if unknown.
    `unreadable` is why the examples cannot be read, empty if they can. `beside` is the record of other data that
    rounds score, by its name there. `partition_names` are those of all partitions, empty without names. `columns`
    are counted only for a new run, and at places as far as the placement allows.
    """

    examples: int = 0
    held_out: int = 0
    inputs: tuple[int, ...] = ()
    targets: tuple[int, ...] = ()
    labels: bool = False
    classes: int = 0
    digest: str = ""
    class_names: tuple[str, ...] = ()
    input_names: tuple[str, ...] = ()
    shared: str = ""
    files: Mapping[str, str] = field(default_factory=dict)
    distinct: int = 0
    target_classes: int = 0
    kind: str = ""
    unreadable: str = ""
    beside: Mapping[str, Any] = field(default_factory=dict)
    partition_names: tuple[str, ...] = ()
    columns: ColumnsRecord = field(default_factory=ColumnsRecord)

    @property
    def recorded(self) -> dict[str, Any]:
        """The entries about the data in a run's record."""
        own = {name: value for name, value in vars(self).items() if name not in ("beside", "columns")}
        return {**own, **self.beside}

    @property
    def meaning(self) -> Meaning:
        """The meaning of the numbers of inputs and targets."""
        return Meaning(self.class_names, self.input_names, self.kind)

    @classmethod
    def of(cls, dataset: Dataset, sample: Examples, least: int = 0, prepared: bool = False) -> Description:
        """Describe a data set by a sample of its examples, its size, and its place.

        Its columns are described unless `least` is 0; see `columns_of`. The kind of examples that are `prepared`
        as they are read is unknown.
        """
        known = targets_of(dataset.train)
        targets = sample.targets if known is None else known
        labels = isinstance(targets, torch.Tensor) and are_labels(targets)
        every = [given for part in dataset.parts if (given := targets_of(part)) is not None] if labels else []
        shown = [part.classes for part in dataset.parts if isinstance(part, Reader)] if labels else []
        told = max([dataset.classes, *shown])
        target_classes = max([told, *(int(given.max()) + 1 for given in every)]) if labels else 0
        alone = every and not (_shape(sample.targets) or told)
        return cls(
            inputs=_shape(sample.inputs),
            targets=_shape(sample.targets),
            labels=labels,
            classes=max([target_classes, *map(_tokens, dataset.parts)]) if labels else 0,
            target_classes=target_classes,
            digest=dataset.digest,
            class_names=dataset.class_names,
            input_names=dataset.input_names,
            distinct=len(torch.cat(every).unique()) if alone else 0,
            kind=_kind(dataset.train, prepared),
            columns=ColumnsRecord(columns_of(dataset, least) if least else {}),
        )


SHOWN = 512
"""The examples in a file larger than memory that are checked for numbers that float32 cannot hold."""

MOST_OUTPUTS = 10_000
"""The most classes of which fewer than one in a hundred may occur."""


def check_numbered(classes: int, distinct: int) -> None:
    """Raise `DataError` if labels below `classes`, of which some occur, are not numbered from 0 upwards.

    With 0 `classes` they are unknown without reading, so no built-in network can be made.
    """
    if not classes:
        raise DataError("labels are unknown before examples are read; give the data set all labels as targets")
    if classes > max(MOST_OUTPUTS, 100 * distinct) and distinct:
        raise DataError(
            f"labels go up to {classes - 1}, and {distinct} different ones occur; number them from 0 upwards, use "
            "a network of your own, or the loss mse if they are quantities"
        )


def check_distinct(dataset: Dataset, dtype: str, name: str) -> None:
    """Raise `DataError` for a column that float32 cannot represent.

    Such a column would keep one distinct number, or less than a quarter of its distinct numbers, as with Unix
    times. Of a file larger than memory, the first `SHOWN` examples are checked.
    """
    for part in dataset.parts if dtype == "float32" else []:
        known = part if isinstance(part, Examples) else _shown(part)
        for kind, tensor in tensors_by_name(known).items() if known else []:
            if tensor.dtype != torch.float64:
                continue
            numbers = tensor.reshape(len(tensor), -1)
            least, most = numbers.aminmax(dim=0)
            spread, size = most - least, torch.maximum(least.abs(), most.abs())
            # float32 has a few thousand steps for them at most; what is closer still is rounding of one number.
            near = (spread < size * 2**-11) & (spread > size * 2**-32)
            for place in near.nonzero().flatten().tolist():
                distinct, left = (len(each.unique()) for each in (numbers[:, place], numbers[:, place].float()))
                if left <= max(1, distinct // 4):
                    column = dataset.input_names[place] if kind == "inputs" and dataset.input_names else place
                    found = f"{distinct} different {kind} in column {column} are {left} in float32"
                    raise DataError(f"{name}: {found}; give --dtype float64, or subtract a constant")


def _shown(part: Reader) -> Examples | None:
    """Return the first examples of files; None for other readers, whose examples may take long to read."""
    with suppress(DataError):  # what cannot be read refuses its partition in the round that needs it
        return part.read(np.arange(min(len(part), SHOWN))) if isinstance(part, FileReader) else None
    return None


def _kind(part: Examples | Reader, prepared: bool) -> str:
    """Return the kind of stored inputs, on which their scaling depends; empty if unknown."""
    known = part if isinstance(part, Examples) else _shown(part)
    if known is None and not prepared:
        with suppress(DataError), pinned(0, threads=1):
            known = part.read(np.arange(1))
    if known is None or pixel_scaling(known.inputs):
        return "pixels" if known else ""
    tensors = tensors_of(Examples(known.inputs, {}))
    return ", ".join("numbers" if tensor.is_floating_point() else "integers" for tensor in tensors)


def _tokens(part: Examples | Reader) -> int:
    """Return the number of tokens in inputs that are sequences like the targets; 0 for other inputs."""
    targets = targets_of(part)
    if not isinstance(part, Examples) or targets is None or targets.ndim < 2:
        return 0
    alike = _shape(part.inputs) == _shape(targets) and part.inputs.dtype == torch.int64
    return int(part.inputs.max()) + 1 if alike else 0


def _shape(tensors: Tensors) -> tuple[int, ...]:
    """Return the shape of one example; () of several tensors by name."""
    return tuple(tensors.shape[1:]) if isinstance(tensors, torch.Tensor) else ()


ROWS, VALUES, INDEXED = 10_000, 1 << 21, 64
"""The most evenly spread rows and the most values that are counted; the most columns without names."""


def columns_of(dataset: Dataset, least: int = 1) -> dict[str, Column]:
    """Return the columns of the stored training examples, and of their targets.

    Inputs have the names of a table's columns. Without names they have an index if they are flat and few numbers;
    else they are one column. If each example has one label, all labels are counted. For files, at most `SHOWN`
    examples are counted. Values are left out if fewer than `least` of them are of one label, in one bin, or
    missing.
    """
    shown = dataset.train if isinstance(dataset.train, Examples) else _shown(dataset.train)
    labels, columns = targets_of(dataset.train), dict[str, Column]()
    given = {**(tensors_by_name(shown) if shown else {}), **({} if labels is None else {"targets": labels})}
    for name, tensor in given.items():
        step = max(-(-len(tensor) // ROWS), -(-tensor.numel() // VALUES), 1)
        rows = tensor if tensor is labels and tensor.ndim == 1 else tensor[::step]
        if name.startswith("targets") and are_labels(rows):
            counts, called = Counter(rows.flatten().tolist()), dict(enumerate(dataset.class_names))
            told = ((label, count) for label, count in sorted(counts.items()) if count >= least)
            categories = {called.get(label, str(label)): count for label, count in told}
            columns[name] = Column("category", len(rows), categories=categories)
            continue
        flat = rows.reshape(len(rows), math.prod(rows.shape[1:]))
        names = dataset.input_names if name == "inputs" and len(dataset.input_names) == flat.shape[1] else ()
        if not names and rows.ndim == 2 and flat.shape[1] <= INDEXED and rows.is_floating_point():
            names = tuple(f"{name} {place}" for place in range(flat.shape[1]))
        parts = dict(zip(names, flat.T, strict=True)) if names else {name: flat}
        columns |= {part: _numbers(values, least) for part, values in parts.items()}
    return columns


def _numbers(tensor: torch.Tensor, least: int) -> Column:
    """Return the column of the numbers of a tensor (example, *), but for bins of fewer than `least`."""
    every = tensor.flatten().double().numpy()
    values = every[~np.isnan(every)] + 0.0  # which makes 0.0 of -0.0
    bits = values.view(np.int64) >> 48
    places = np.where(bits < 0, -(bits & 0x7FFF), bits) + INFINITE
    counts, missing = np.bincount(places), len(every) - len(values)
    bins = {int(place) - INFINITE: int(counts[place]) for place in (counts >= max(1, least)).nonzero()[0]}
    finite = values[np.isfinite(values) & (counts[places] >= least)]
    scale = np.abs(finite).max(initial=1.0)  # squares of large numbers are infinite
    mean, deviation = (float(of(finite / scale) * scale) if len(finite) else 0.0 for of in (np.mean, np.std))
    counts_of = (len(tensor), missing if missing >= least else 0, bins)
    return Column(dtype_name(tensor.dtype), *counts_of, {}, mean, deviation, len(finite))


def _both(one: Mapping[str, Column], other: Mapping[str, Column]) -> dict[str, Column]:
    """Return the columns of the examples of both."""
    return {**one, **other, **{name: one[name].joined(other[name]) for name in one if name in other}}


def put_alike(descriptions: Sequence[Description]) -> Meaning | None:
    """Return the order of labels, if one an example, and of columns, if partitions have different names.

    Else None.
    """
    known = [each.meaning for each in descriptions if not each.unreadable]
    named = all(each.class_names for each in known) and not any(each.targets for each in descriptions)
    known = known if named else [replace(each, class_names=()) for each in known]
    return common(known) if len({(each.class_names, each.input_names) for each in known}) > 1 else None


def combine(
    descriptions: Sequence[Description],
    called: Callable[[int], str] = "partition {}".format,
    alike: bool = True,
    padded: bool = False,
) -> Description:
    """Combine the partitions' descriptions into one. Raises `DataError` if two do not fit together.

    `called` gives the name of a partition. A partition that cannot be read has an empty digest and no other facts.
    Unless all must be `alike`, examples may be of other kinds, such as images of other sizes. If a function of the
    user's makes batches, examples may be `padded`, and of different lengths.
    """
    known = {called(number): each for number, each in enumerate(descriptions) if not each.unreadable}
    one, first = next(iter(known.items()))
    for name, other in known.items():
        if alike:
            _check_alike(name, other, one, first, padded)
    meaning = agree({name: each.meaning for name, each in known.items()})
    every = known.values()
    shared = first.shared if len({d.shared for d in every}) == 1 else ""
    return replace(
        first,
        examples=sum(d.examples for d in every),
        held_out=first.held_out if shared else sum(d.held_out for d in every),
        classes=max(d.classes for d in every),
        target_classes=max(d.target_classes for d in every),
        distinct=sum(d.distinct for d in every) if all(d.distinct for d in every) else 0,
        class_names=meaning.class_names,
        input_names=meaning.input_names,
        files={name: shown for d in every for name, shown in d.files.items()},
        digest=json_digest([d.digest for d in descriptions]),
        shared=shared,
        columns=ColumnsRecord(reduce(_both, [d.columns.columns for d in every])),
    )


def _check_alike(name: str, other: Description, one: str, first: Description, padded: bool) -> None:
    """Raise `DataError` if the examples of two partitions, called `name` and `one`, are not of one kind."""
    shapes = [(each.inputs, each.targets) for each in (other, first)]
    axes = [tuple(map(len, each)) for each in shapes]
    if axes[0] != axes[1] or (shapes[0] != shapes[1] and not padded):
        raise DataError(
            f"{name} has inputs {other.inputs} and targets {other.targets}, "
            f"{one} has {first.inputs} and {first.targets}"
        )
    both = {one: first, name: other}
    agreed_kind({each: "labels" if known.labels else "quantities" for each, known in both.items()}, "targets")
