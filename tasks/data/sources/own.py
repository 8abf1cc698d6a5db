"""Data from a user's function: arrays, or data sets of torch and Hugging Face, read where they are used."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import islice
from typing import Any

import numpy as np
import torch
from torch.utils.data import ConcatDataset, IterableDataset, Subset, TensorDataset

from roundweave.storage.errors import DataError, UsageError, failing_as, located, nearest, one_line
from roundweave.storage.values.digests import tensor_digest
from roundweave.tasks.data.collating import (
    TARGETS,
    batch_of,
    collated,
    examples_of,
    inputs_and_targets,
    joined,
    needed,
)
from roundweave.tasks.data.datasets import Dataset, Reader, pixel_scaling
from roundweave.tasks.data.examples import Examples, check_values
from roundweave.tasks.data.meaning import agreed_names
from roundweave.tasks.data.sources.table import Source
from roundweave.tasks.numerics.pinning import alone, pinned
from roundweave.tasks.own_code.code import Code

READ_AGAIN = 8
"""The number of evenly spread examples that show whether a data set is the same. Each may take long to read."""


@dataclass(frozen=True)
class Own(Source):
    """A user's function as a source: ``f()`` gives everything, ``f(partition, partitions)`` one partition.

    The function returns one of: (inputs, targets); a pair of such pairs, the second held out; a `Dataset` of ours;
    a data set of torch or Hugging Face; or a pair of those. `options` is a JSON object of keyword arguments.
    """

    code: Code
    options: str = "{}"

    def __str__(self) -> str:
        return self.code.reference

    @property
    def partitioned(self) -> bool:
        """Whether the function takes (partition, partitions)."""
        return needed(self._function()) == 2

    def _function(self) -> Callable[..., Any]:
        """Return the function with its options. Raises `UsageError` for an option that it does not take."""
        function, options = self.code.load(), json.loads(self.options)
        taken = inspect.signature(function).parameters.values()
        names = [each.name for each in taken if each.kind in (each.POSITIONAL_OR_KEYWORD, each.KEYWORD_ONLY)]
        if not any(each.kind is each.VAR_KEYWORD for each in taken) and (other := sorted({*options} - {*names})):
            such = nearest(other[0], names, f"it takes {', '.join(names) or 'no options'}")
            raise UsageError(f"data {self} takes no option {other[0]!r}; {such}")
        return partial(function, **options)

    def load(self, partition: int = 0, partitions: int = 1) -> Dataset:
        """Return what the function gives, checked for NaN and bad labels unless it is `partitioned`."""
        dataset = self.again(partition, partitions)
        for examples in [] if self.partitioned else dataset.parts:
            if isinstance(examples, Examples):
                check_values(examples, str(self))
        return dataset

    def again(self, partition: int, partitions: int) -> Dataset:
        """Call the function and turn its value into tensors."""
        name, asked = str(self), (partition, partitions) if self.partitioned else ()
        failing = failing_as(lambda error: DataError(f"{name}{asked or ''} failed with {located(error)}"))
        with failing, alone():  # it may seed generators itself
            value = self._function()(*asked)
        if isinstance(value, Dataset):
            held, names = value.held_out, value.class_names or class_names(value.train)
            train = _given(value.train, name)
            return replace(value, train=train, held_out=held and _given(held, name), class_names=names)
        parts = value if _is_pair(value) else [value]
        if not all(map(is_data_set, parts)):
            parts = _pairs(value, name)
        whole, *held_out = [_named(part, name) for part in parts]
        return _beside(whole, held_out[0].arranged(whole.meaning)) if held_out else whole


def _beside(train: Dataset, held: Dataset) -> Dataset:
    """Return a data set with another one held out. Raises `DataError` if one number has two names in them."""
    every = {"what is held out": held, "what is trained on": train}
    names = agreed_names({called: each.class_names for called, each in every.items()}, "class")
    agreed_names({called: each.input_names for called, each in every.items()}, "column")
    return replace(train, held_out=held.train, classes=max(train.classes, held.classes), class_names=names)


def _named(part: Any, name: str) -> Dataset:
    """Return a data set, or a pair of inputs and targets, with the names of its labels and its columns."""
    from roundweave.tasks.data.sources.encoding import named_labels  # of users' data alone

    alone = is_data_set(part)
    targets, texts = (None, ()) if alone else named_labels(part[1], name)
    given = _part(part, name) if alone else examples_of(_columns(part[0], name), targets, name)
    classes = () if isinstance(given, Items) and given.relabelled else texts or class_names(part)
    scaling = pixel_scaling(given.inputs) if isinstance(given, Examples) else None
    inputs = given.input_names if isinstance(given, Columns) else () if alone else table_columns(part[0])
    return Dataset(given, None, scaling, classes=len(classes), class_names=classes, input_names=inputs)


def _columns(inputs: Any, name: str) -> Any:
    """Return inputs.

    A table's columns of different number types are joined. Raises `DataError` for a column of texts.
    """
    if not table_columns(inputs) or inputs.to_numpy().dtype.kind != "O":
        return inputs
    for column, values in inputs.items():
        if values.dtype.kind not in "biuf":
            raise DataError(f"{name}: column {column!r} holds {values.dtype}; code it as numbers, or leave it out")
    return joined({str(column): values.to_numpy() for column, values in inputs.items()})


def table_columns(inputs: Any) -> tuple[str, ...]:
    """Return the names of a table's columns, such as one of pandas, in the order of the inputs."""
    return tuple(map(str, inputs.columns)) if hasattr(inputs, "columns") and np.ndim(inputs) == 2 else ()


def class_names(data: Any) -> tuple[str, ...]:
    """Return the names of the labels of a data set, as torchvision and Hugging Face have them; () if unknown.

    Names of a `Subset` are those of the whole, and of a `ConcatDataset` those of each. Raises `DataError` if these
    differ.
    """
    if isinstance(data, Subset):
        return class_names(data.dataset)
    if isinstance(data, ConcatDataset):
        named = {class_names(each) for each in data.datasets}
        if len(named) > 1:
            raise DataError("the parts of a ConcatDataset name different classes; make them alike")
        return named.pop()
    features = getattr(data, "features", None)
    feature = features.get(target_column(data)) if isinstance(features, Mapping) else None
    names = getattr(feature, "names", None) or getattr(data, "classes", None)
    return tuple(map(str, names)) if isinstance(names, Sequence) else ()


def target_column(data: Any) -> str:
    """Return the column of the targets of a table of Hugging Face."""
    names = list(data.column_names or ())
    return next((key for key in TARGETS if key in names), names[-1] if names else "")


def _is_pair(value: Any) -> bool:
    return isinstance(value, tuple | list) and len(value) == 2


def _given(part: Any, name: str) -> Examples | Reader:
    """Return a part of a `Dataset` of ours, which a user may give in any form. Raises `DataError`."""
    if isinstance(part, Examples):
        return part
    return _part(part, name) if is_data_set(part) else examples_of(*_pairs(part, name)[0], name)


def _pairs(value: Any, name: str) -> list[tuple[Any, Any]]:
    """Return the pairs (inputs, targets) to train on and, if given, held out.

    Raises `DataError` for other values.
    """
    if isinstance(value, Mapping):
        if any(map(is_data_set, value.values())):
            raise DataError(f"{name} returns data sets by name; return one, or a pair with one held out")
        return [inputs_and_targets(value, name)]
    if _is_pair(value):
        # A pair of numbers is an example, not a pair of inputs and targets.
        if all(_is_pair(pair) and all(hasattr(member, "__len__") for member in pair) for pair in value):
            return [tuple(pair) for pair in value]
        if all(isinstance(one, Mapping) and {*TARGETS} & {*one} for one in value):
            return [inputs_and_targets(one, name) for one in value]
        if not isinstance(value[0], tuple):
            return [(value[0], value[1])]
    pairs = "(inputs, targets), a pair of such pairs of which the second is held out"
    raise DataError(f"{name} must return {pairs}, or a data set of torch or Hugging Face")


def is_data_set(value: Any) -> bool:
    """Tell whether a value is a reader, or a data set of torch or of Hugging Face, known by its attributes."""
    columns = hasattr(value, "column_names") and hasattr(value, "with_format") and not isinstance(value, dict)
    return columns or isinstance(value, Reader | torch.utils.data.Dataset)


def _part(data: Any, name: str) -> Examples | Reader:
    if isinstance(data, Reader):
        return data
    if isinstance(data, TensorDataset) and len(data.tensors) == 2:
        return examples_of(*data.tensors, name)
    if isinstance(data, IterableDataset) or not hasattr(data, "__getitem__"):
        return Stream(data, name=name)
    if not hasattr(data, "__len__") or not len(data):
        raise DataError(f"{name}: a {type(data).__name__} has no length, or no examples")
    if not hasattr(data, "column_names"):
        return Items(data, name)
    if (getattr(data, "format", None) or {}).get("type"):
        return Columns(data, name)
    wide = [key for key, kind in (getattr(data, "features", None) or {}).items() if "float64" in str(kind)]
    exact = data.select_columns(wide).with_format("numpy", dtype=np.float64) if wide else None
    return Columns(data.with_format("numpy"), name, exact)


@dataclass(frozen=True, eq=False)
class Items(Reader):
    """A map-style data set of torch. Its examples are pairs (input, target), or dicts."""

    data: Any
    name: str

    def __len__(self) -> int:
        return len(self.data)

    def read(self, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,), stacked. Raises `DataError` if they do not stack."""
        return check_values(collated(self.items(rows), self.name), self.name, rows)

    def items(self, rows: np.ndarray) -> list[Any]:
        """Return the examples at some rows, int64 (row,), as the data set gives them."""
        many = getattr(self.data, "__getitems__", None)
        return list(many(rows.tolist())) if many else [self.data[row] for row in rows.tolist()]

    @property
    def targets(self) -> torch.Tensor | None:
        """The targets (example,), if the data set, or that of a `Subset`, holds them as torchvision does."""
        return None if self.relabelled else self._told

    @functools.cached_property
    def relabelled(self) -> bool:
        """Tell whether some examples have other targets than the data set holds, as by a ``target_transform``."""
        if (told := self._told) is None:
            return False
        failing = failing_as(lambda error: DataError(f"{self.name}: an example failed with {located(error)}"))
        with failing, pinned(0, threads=1):
            items = [
                inputs_and_targets(i, self.name) if isinstance(i, Mapping) else i for i in self.items(self._some)
            ]
            given, held = [np.asarray(item[1]) for item in items], told[torch.from_numpy(self._some)].tolist()
        return np.shape(given) != np.shape(held) or not np.allclose(given, held, equal_nan=True)

    @functools.cached_property
    def _told(self) -> torch.Tensor | None:
        if isinstance(self.data, Subset):
            every = _part(self.data.dataset, self.name).targets
            return every[list(self.data.indices)] if isinstance(every, torch.Tensor) else None
        known = next((getattr(self.data, key) for key in TARGETS if hasattr(self.data, key)), None)
        return None if known is None or len(known) != len(self) else torch.as_tensor(known)

    @property
    def _some(self) -> np.ndarray:
        return np.unique(np.linspace(0, len(self) - 1, READ_AGAIN).astype(np.int64))

    def evidence(self) -> list[Any]:
        """Return the number of examples, and the digests of some of them."""
        return [len(self), *_described(lambda: self.items(self._some))]


@dataclass(frozen=True, eq=False)
class Columns(Items):
    """A data set of Hugging Face. Its examples are dicts. Without a format it gives arrays of numpy.

    `exact` has the columns of float64: the arrays of numpy are float32.
    """

    exact: Any = None

    def _at(self, rows: np.ndarray) -> dict[str, Any]:
        with failing_as(lambda error: DataError(f"{self.name}: {one_line(error)}; fill what is missing (None)")):
            return {**self.data[rows], **({} if self.exact is None else self.exact[rows])}

    def items(self, rows: np.ndarray) -> list[Any]:
        """Return the examples at some rows, int64 (row,), as dicts."""
        columns = self._at(rows)
        return [{key: column[place] for key, column in columns.items()} for place in range(len(rows))]

    def read(self, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,), with inputs as `joined` gives them."""
        columns = self._at(rows)
        if len(columns) < 2:
            raise DataError(f"{self.name} needs a column of inputs and one of targets, and has {[*columns]}")
        for key, column in columns.items():
            if np.asarray(column).dtype.kind not in "biuf":
                raise DataError(f"{self.name}: column {key!r} holds no numbers of one shape; code it or remove it")
        targets = columns.pop(target_column(self.data))
        return check_values(batch_of((joined(columns), targets), self.name), self.name, rows)

    @property
    def input_names(self) -> tuple[str, ...]:
        """The columns that are joined to inputs, in order. A single column needs no name."""
        names = tuple(name for name in self.data.column_names or () if name != target_column(self.data))
        return names if len(names) > 1 else ()

    @property
    def targets(self) -> torch.Tensor | None:
        """The column of the targets (example,), if it holds single numbers."""
        if not hasattr(self.data, "select_columns"):
            return None
        name = target_column(self.data)
        column = np.asarray(self.data.select_columns([name]).with_format("numpy")[:][name])
        return torch.from_numpy(column) if column.ndim == 1 and column.dtype.kind in "biuf" else None


@dataclass(frozen=True, eq=False)
class Stream(Reader):
    """Examples that are read one after the other.

    Args:
        data: An ``IterableDataset`` of torch, a streamed data set of Hugging Face, or another iterable that starts
            anew each time.
        examples: The number of examples; by default the length of `data`.
        name: The name in messages.

    Raises:
        DataError: `data` has no length, and `examples` is not given.

    Example:
        >>> len(rw.Stream((([float(n)], n % 2) for n in range(100)), examples=100))
        100
    """

    data: Any
    examples: int | None = None
    name: str = "the stream"

    def __post_init__(self) -> None:
        if self.examples is None and not hasattr(self.data, "__len__"):
            kind = f"a stream ({type(self.data).__name__}) of unknown length"
            raise DataError(f"{self.name} gives {kind}; give __len__, or rw.Stream(data, count)")

    def __len__(self) -> int:
        return len(self.data) if self.examples is None else self.examples

    def at(self, rows: np.ndarray) -> Iterator[Any]:
        """Yield the examples at some rows, int64 (row,), in the stream's order.

        Raises `DataError` if it ends before.
        """
        wanted, read = np.bincount(rows) > 0, 0
        for read, item in enumerate(islice(self.data, len(wanted)), 1):
            if wanted[read - 1]:
                yield item
        if read < len(wanted):
            raise DataError(f"{self.name} says that it has {len(self)} examples, and ends after {read}")

    def items(self, rows: np.ndarray) -> list[Any]:
        """Return the examples at some rows, int64 (row,). All examples before them are read."""
        found = dict(zip(sorted({*rows.tolist()}), self.at(rows), strict=True))
        return [found[row] for row in rows.tolist()]

    def read(self, rows: np.ndarray) -> Examples:
        """Return the examples at some rows, int64 (row,), stacked."""
        return collated(self.items(rows), self.name, alone=True)

    def evidence(self) -> list[Any]:
        """Return the number of examples, and the digests of the first ones."""
        return [len(self), *_described(lambda: islice(self.data, READ_AGAIN))]

    def check_order(self) -> None:
        """Raise `DataError` if the order follows the seed of global generators: each map would read another."""
        # Under two seeds alone it might open the same one of a few files.
        first, *others = (_described(lambda: islice(self.data, READ_AGAIN), seed) for seed in range(4))
        if any(other != first for other in others):
            raise DataError(
                f"{self.name} gives other examples, or another order of them, with each seed of torch, numpy and "
                "random; give what shuffles it a seed of its own, and augment by --transform, which is seeded"
            )


def _described(read: Callable[[], Iterable[Any]], seed: int = 0) -> list[Any]:
    """Return examples as JSON, with digests in place of arrays. One seed draws all that their reading draws."""
    with pinned(seed, threads=1):
        return [_plain(item) for item in read()]


def _plain(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, tuple | list):
        return [_plain(inner) for inner in value]
    if isinstance(value, str | int | float | None):
        return value
    array = value if isinstance(value, torch.Tensor) else np.asarray(value)
    if isinstance(array, torch.Tensor) or array.dtype.kind in "biuf":
        return tensor_digest("", torch.as_tensor(array))
    return str(value) if array.dtype.kind in "US" else type(value).__name__
