"""Opened data sets, and how batches are read from them and prepared by the user's functions, with seeded draws.

`partition()` tells the user's functions for which partition they are called.
"""

from __future__ import annotations

import copy
import functools
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from roundweave.storage.errors import CODE_RAISES, DataError, RoundweaveError, UsageError, failing_as, located
from roundweave.tasks.data.collating import batch_of, check_pair, collated, needed
from roundweave.tasks.data.datasets import Dataset, Reader, check_alike
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.data.sources.table import Source
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code


@dataclass(frozen=True)
class CurrentPartition:
    """The partition for which the user's code is called.

    `number` counts from 0. `name` is the value of the partition in a split by a column, or the name of its data
    set, else its number as a text. `partitions` is the number of all partitions, and `options` are the options of
    this one. `cohort` has the numbers of the partitions in the round, ascending. With a parameter server, and in
    data functions, `cohort` has all partitions.
    """

    number: int
    name: str
    partitions: int
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cohort: Sequence[int] = field(default=(), compare=False)


CURRENT: ContextVar[CurrentPartition | None] = ContextVar("partition", default=None)
"""The partition for which this thread calls the user's code; None during a call for all or several partitions."""


@contextmanager
def as_partition(partition: CurrentPartition | None) -> Iterator[None]:
    """Call the user's code for a partition, or for none, inside this context."""
    token = CURRENT.set(partition)
    try:
        yield
    finally:
        CURRENT.reset(token)


def partition() -> CurrentPartition:
    """Tell a map, a transform or a data function for which partition it is called.

    Returns:
        A frozen value with `number`, `name`, `partitions` (the number of all), `cohort` (the numbers of the
        partitions in the round) and `options` (a copy of what ``--partition-options`` gives the partition).

    Raises:
        UsageError: The code is called for no single partition.

    Example:
        >>> def transform(picture):
        ...     return -picture if rw.partition().options.get("negative") else picture
    """
    current = CURRENT.get()
    if current is None:
        raise UsageError(
            "rw.partition() needs code that is called for one partition, and this code is called for several"
        )
    return replace(current, options=copy.deepcopy(current.options))


class ReadingFailed(Exception):
    """Examples could not be read or prepared; the text says why. A round treats this as an error of the map."""


_opened: OrderedDict[tuple[Source, CurrentPartition | None], Dataset] = OrderedDict()


def opened(source: Source, partition: CurrentPartition | None, memory: float = 0) -> Dataset:
    """Return what a source gives for a partition, or for all if that is None. Raises `DataError`.

    A process holds at most `memory` bytes of examples and the last data set. The least recently used data set is
    dropped first.
    """
    key = (source, partition)
    if key not in _opened:
        with as_partition(partition):
            dataset = source.load(*((partition.number, partition.partitions) if partition else (0, 1)))
        check_alike(dataset, str(source))
        _opened[key] = dataset
        size = sum(one.nbytes for one in _opened.values())
        while len(_opened) > 1 and size > memory:
            _, oldest = _opened.popitem(last=False)
            size -= oldest.nbytes
    _opened.move_to_end(key)
    return _opened[key]


def forget_opened(reading: Reading | None = None) -> None:
    """Forget the data sets of this process, or the one of a reading, because they may have changed on disk."""
    if reading is None:
        _opened.clear()
    else:
        _opened.pop((reading.source, reading.partition), None)


@dataclass(frozen=True)
class Loading:
    """How examples are prepared where they are used. All fields but `workers` and `memory` decide bits.

    `transform` is called with the input of each training example, or with input and target. `held_out_transform`
    is called with each held-out example. `collate` makes a batch of a list of examples. `workers` is the number of
    processes that read ahead. `memory` is how many bytes of examples a process holds; None holds all.
    """

    transform: Code | None = None
    held_out_transform: Code | None = None
    collate: Code | None = None
    workers: int = 0
    memory: int | None = None

    @property
    def given(self) -> list[str]:
        """The settings that change examples in memory before their use. `workers` alone changes nothing."""
        return [name for name, given in vars(self).items() if name != "workers" and given is not None]

    @property
    def held_bytes(self) -> float:
        """The bytes of data sets that a process holds besides the one in use."""
        return 0 if not self.given else inf if self.memory is None else self.memory


@dataclass(frozen=True)
class Reading:
    """Reads and prepares batches of what a source gives for a partition. It is a small value, sent to loaders.

    `partition` is the partition that the source is asked for, None if the source gives all at once. `owner` is the
    partition whose examples they are, None if all partitions score with them. `held_out` selects the held-out
    examples, and `dtype` is that of floats. `unreadable` is the reason why examples cannot be read.
    """

    source: Source
    partition: CurrentPartition | None
    owner: CurrentPartition | None
    held_out: bool
    loading: Loading
    dtype: str
    unreadable: str = ""

    @property
    def dataset(self) -> Dataset:
        """The data set of the source. Each process opens it once."""
        return opened(self.source, self.partition, self.loading.held_bytes)

    @property
    def part(self) -> Examples | Reader:
        """The training examples of the data set, or the held-out ones. Raises `ReadingFailed`."""
        if self.unreadable:
            raise ReadingFailed(self.unreadable)
        return self.dataset.part(self.held_out)

    @property
    def _transform(self) -> Code | None:
        return self.loading.held_out_transform if self.held_out else self.loading.transform

    def rows(self, rows: np.ndarray, seed: int) -> Examples:
        """Return the prepared batch of some rows, int64 (row,), drawn from the seed. Raises `ReadingFailed`."""
        with self._drawing(seed):
            if self._transform is None and self.loading.collate is None:
                return self.dataset.finished(self.part.read(rows), self.dtype)
            return self._prepared(self.part.items(rows))

    def next(self, items: Iterator[Any], count: int, seed: int) -> Examples:
        """Return the prepared batch of the next examples of a stream, at most so many; see `rows`."""
        with self._drawing(seed):
            return self._prepared(list(islice(items, count)), alone=True)

    def _prepared(self, items: Sequence[Any], alone: bool = False) -> Examples:
        transform, collate, name = self._transform, self.loading.collate, str(self.source)
        if transform is not None:
            with _named("transform", transform):
                items = list(map(_per_example(transform, name), items))
        if collate is None:
            return self.dataset.finished(collated(items, name, alone), self.dtype)
        with _named("collate", collate):
            given = _function(collate)(list(items))
        batch = batch_of(given, name)
        return self.dataset.finished(batch, self.dtype)

    @contextmanager
    def _drawing(self, seed: int) -> Iterator[None]:
        """Seed the process's generators, and raise `ReadingFailed` for any error, in a loader and here."""
        with pinned(seed, threads=1), as_partition(CURRENT.get() or self.owner):
            try:
                yield
            except RoundweaveError as error:
                raise ReadingFailed(str(error)) from error
            except CODE_RAISES as error:
                raise ReadingFailed(f"{self.source}: {located(error)}") from error


def _named(what: str, code: Code) -> AbstractContextManager[None]:
    """Inside this context, errors of the user's function carry the name of the function."""
    return failing_as(lambda error: DataError(f"{what} {code.reference} failed with {located(error)}"))


_function = functools.lru_cache(maxsize=4)(Code.load)


@functools.lru_cache(maxsize=4)
def _per_example(transform: Code, name: str) -> Callable[[Any], Any]:
    """Return a function of an example that transforms its input, or input and target if it takes both."""
    function = _function(transform)
    takes_both = needed(function) == 2

    def transformed(item: Any) -> Any:
        if isinstance(item, Mapping):
            return function(item)
        check_pair(item, f"{name}: an example")
        inputs, target = item
        return function(inputs, target) if takes_both else (function(inputs), target)

    return transformed
