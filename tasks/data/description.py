"""What is known of a run's examples before a network is made for them."""

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
"""Calls a function with numbers of partitions, where their examples lie; the results in order of the numbers."""


def gather_here(function: Callable[[int], Any], numbers: Iterable[int]) -> list[Any]:
    """Call a function with numbers of partitions in this process."""
    return list(map(function, numbers))


@dataclass(frozen=True)
class Description:
    """What a network's construction needs to know of the examples; shapes are those of one example.

    `labels` says whether targets are class labels: one for each example, shape (), or one for each place, such as
    (time,). `class_names` are the labels' names before they were coded as numbers, and `input_names` those of the
    columns of a table. If every partition has the same held-out examples, `shared` is their digest and they are
    counted once; else it is empty. `files` has what shows that each file is the same which is read where it is
    used, by its name. Of `classes` the `target_classes` are labels, where sequences of tokens have tokens beside
    them. `distinct` is how many labels occur, of several partitions at most, or 0 if each example has
    several or a data set tells its classes. `kind` says what inputs are as they are stored: pixels, integers or
    numbers; empty if that is not known. `unreadable` is why the examples cannot be read, empty if they can.
    `beside` is what the record has of other data that rounds score, by its name there.
    `columns` are counted only for a new run, and where examples stay at places as far as the placement tells.
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
    columns: ColumnsRecord = field(default_factory=ColumnsRecord)

    @property
    def recorded(self) -> dict[str, Any]:
        """What a run's record has of its data."""
        own = {name: value for name, value in vars(self).items() if name not in ("beside", "columns")}
        return {**own, **self.beside}

    @property
    def meaning(self) -> Meaning:
        """What the numbers of inputs and targets mean."""
        return Meaning(self.class_names, self.input_names, self.kind)

    @classmethod
    def of(cls, dataset: Dataset, sample: Examples, least: int = 0, prepared: bool = False) -> Description:
        """Describe a data set by a sample of its examples, but for how many there are and where they are read.

        Its columns are described unless `least` is 0; see `columns_of`. It is not known of what kind examples are
        that are `prepared` as they are read.
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
"""Of so many examples in a file that is larger than memory it is looked whether float32 can hold them."""

MOST_OUTPUTS = 10_000
"""How many classes there may be of which less than one in a hundred occurs."""


def check_numbered(classes: int, distinct: int) -> None:
    """Raise `DataError` if labels below `classes`, of which some occur, are not numbered from 0 upwards.

    With 0 `classes` they are not known without reading, so that a built-in network cannot be made.
    """
    if not classes:
        raise DataError("labels are known only as they are read; give the data set all of them as targets")
    if classes > max(MOST_OUTPUTS, 100 * distinct) and distinct:
        raise DataError(
            f"labels go up to {classes - 1}, and {distinct} different ones occur; number them from 0 upwards, use "
            "a network of your own, or the loss mse if they are quantities"
        )


def check_distinct(dataset: Dataset, dtype: str, name: str) -> None:
    """Raise `DataError` if a column's different numbers are one, or less than a quarter as many, in float32.

    Such as times in seconds, which only float64 tells apart. Of a file that is larger than memory the first
    `SHOWN` examples are looked at.
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
                    raise DataError(f"{name}: {found}; give --dtype float64, or subtract what they share")


def _shown(part: Reader) -> Examples | None:
    """The first examples of files; None for other readers, of which each may take long to read."""
    with suppress(DataError):  # what cannot be read refuses its partition in the round that needs it
        return part.read(np.arange(min(len(part), SHOWN))) if isinstance(part, FileReader) else None
    return None


def _kind(part: Examples | Reader, prepared: bool) -> str:
    """What inputs are as they are stored, on which their scaling depends; empty if that is not known."""
    known = part if isinstance(part, Examples) else _shown(part)
    if known is None and not prepared:
        with suppress(DataError), pinned(0, threads=1):
            known = part.read(np.arange(1))
    if known is None or pixel_scaling(known.inputs):
        return "pixels" if known else ""
    tensors = tensors_of(Examples(known.inputs, {}))
    return ", ".join("numbers" if tensor.is_floating_point() else "integers" for tensor in tensors)


def _tokens(part: Examples | Reader) -> int:
    """How many tokens there may be in inputs that are sequences like the targets; 0 if they are none."""
    targets = targets_of(part)
    if not isinstance(part, Examples) or targets is None or targets.ndim < 2:
        return 0
    alike = _shape(part.inputs) == _shape(targets) and part.inputs.dtype == torch.int64
    return int(part.inputs.max()) + 1 if alike else 0


def _shape(tensors: Tensors) -> tuple[int, ...]:
    """The shape of one example; () of several tensors by name."""
    return tuple(tensors.shape[1:]) if isinstance(tensors, torch.Tensor) else ()


ROWS, VALUES, INDEXED = 10_000, 1 << 21, 64
"""At most so many evenly spread rows, with so many values, are counted; without names at most so many columns."""


def columns_of(dataset: Dataset, least: int = 1) -> dict[str, Column]:
    """The columns of the examples to train on, as they are stored, and of their targets.

    Inputs have the names of a table's columns, or an index if they are flat and few numbers; else they are one
    column. All labels are counted if there is one for each example, and of files no more than `SHOWN` examples.
    Values of which fewer than `least` are of one label, or in one bin, or missing, are left out.
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
    """The column of the numbers of a tensor (example, *), but for bins of fewer than `least`."""
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
    """The columns of the examples of both."""
    return {**one, **other, **{name: one[name].joined(other[name]) for name in one if name in other}}


def put_alike(descriptions: Sequence[Description]) -> Meaning | None:
    """The order that labels are put in, if one an example, where partitions name other ones; else None."""
    known = [each.meaning for each in descriptions if not each.unreadable]
    named = all(each.class_names for each in known) and not any(each.targets for each in descriptions)
    return common(known) if named and len({each.class_names for each in known}) > 1 else None


def combine(
    descriptions: Sequence[Description],
    called: Callable[[int], str] = "partition {}".format,
    alike: bool = True,
    padded: bool = False,
) -> Description:
    """Combine the partitions' descriptions into one; raises `DataError` if two do not fit together.

    `called` gives what a partition is called. Of those that cannot be read nothing is known but that, by their
    empty digests. Unless all are to be `alike`, examples may be of other kinds, such as images of other sizes.
    Those of which a function of the user's makes batches may be `padded`, and of other lengths.
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
