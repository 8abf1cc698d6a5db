"""Opened data sets, and how batches are read of them and prepared by the user's functions, with seeded draws.

`partition()` tells the user's functions which partition they are called for."""

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
    """The partition that the user's code is called for.

    `number` is from 0, and `name` is that of its value in a split by a column, or of its data set where each
    partition has one; else its number as a text. `partitions` is how many there are, and `options` are its own.
    `cohort` has the numbers of those that take part in the round, ascending. It has all where there is no such
    round: with a parameter server, and in data functions.
    """

    number: int
    name: str
    partitions: int
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cohort: Sequence[int] = field(default=(), compare=False)


CURRENT: ContextVar[CurrentPartition | None] = ContextVar("partition", default=None)
"""The partition for which this thread calls the user's code; None while it is called for all, or for several."""


@contextmanager
def as_partition(partition: CurrentPartition | None) -> Iterator[None]:
    """Have the user's code called for a partition, or for none, while the context lasts."""
    token = CURRENT.set(partition)
    try:
        yield
    finally:
        CURRENT.reset(token)


def partition() -> CurrentPartition:
    """Tell for which partition a map, a transform or a data function is called.

    Returns:
        A frozen value with `number`, `name`, `partitions` (how many there are), `cohort` (the numbers of those
        that take part in the round) and `options` (a copy of those that ``--partition-options`` gives it).

    Raises:
        UsageError: The code is not called for one partition alone.

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
    """Examples could not be read or prepared; the text says why. To a round it is an error of the map."""


_opened: OrderedDict[tuple[Source, CurrentPartition | None], Dataset] = OrderedDict()


def opened(source: Source, partition: CurrentPartition | None, memory: float = 0) -> Dataset:
    """What a source gives for a partition, or if that is None for all; raises `DataError`.

    A process holds at most `memory` bytes of examples and the last data set. What was used longest ago goes first.
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
    """Forget the data sets of this process, or the one that a reading is of: they may have changed on disk."""
    if reading is None:
        _opened.clear()
    else:
        _opened.pop((reading.source, reading.partition), None)


@dataclass(frozen=True)
class Loading:
    """How examples are prepared where they are used; all but `workers` and `memory` decides bits.

    `transform` is called with the input of each example to train on, or with input and target, and
    `held_out_transform` with those to score with. `collate` makes a batch of a list of examples. `workers` is the
    number of processes that read ahead, and `memory` how many bytes of examples a process holds; None: all.
    """

    transform: Code | None = None
    held_out_transform: Code | None = None
    collate: Code | None = None
    workers: int = 0
    memory: int | None = None

    @property
    def given(self) -> list[str]:
        """The settings because of which examples in memory are not used as they are; `workers` alone is none."""
        return [name for name, given in vars(self).items() if name != "workers" and given is not None]

    @property
    def held_bytes(self) -> float:
        """How many bytes of data sets a process holds besides the one in use."""
        return 0 if not self.given else inf if self.memory is None else self.memory


@dataclass(frozen=True)
class Reading:
    """Reads and prepares batches of what a source gives for a partition; a small value that loaders are sent.

    `partition` is the one that the source is asked for, None if it gives all at once, and `owner` the one whose
    examples they are, None if all partitions score with them. `held_out` means the examples to score with, and
    `dtype` is that of their floats. Of examples that cannot be read, `unreadable` is the reason.
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
        """What the source gives, which each process opens once."""
        return opened(self.source, self.partition, self.loading.held_bytes)

    @property
    def part(self) -> Examples | Reader:
        """The examples of the data set to train on, or those to score with; raises `ReadingFailed`."""
        if self.unreadable:
            raise ReadingFailed(self.unreadable)
        return self.dataset.part(self.held_out)

    @property
    def _transform(self) -> Code | None:
        return self.loading.held_out_transform if self.held_out else self.loading.transform

    def rows(self, rows: np.ndarray, seed: int) -> Examples:
        """The prepared batch of some rows, int64 (row,), drawn from the seed; raises `ReadingFailed`."""
        with self._drawing(seed):
            if self._transform is None and self.loading.collate is None:
                return self.dataset.finished(self.part.read(rows), self.dtype)
            return self._prepared(self.part.items(rows))

    def next(self, items: Iterator[Any], count: int, seed: int) -> Examples:
        """The prepared batch of the next examples of a stream, at most so many; see `rows`."""
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
        """Seed the process's generators, and raise `ReadingFailed` for any error, in a loader as in here."""
        with pinned(seed, threads=1), as_partition(CURRENT.get() or self.owner):
            try:
                yield
            except RoundweaveError as error:
                raise ReadingFailed(str(error)) from error
            except CODE_RAISES as error:
                raise ReadingFailed(f"{self.source}: {located(error)}") from error


def _named(what: str, code: Code) -> AbstractContextManager[None]:
    """A context in which an error of the user's function is told under the name of the function."""
    return failing_as(lambda error: DataError(f"{what} {code.reference} failed with {located(error)}"))


_function = functools.lru_cache(maxsize=4)(Code.load)


@functools.lru_cache(maxsize=4)
def _per_example(transform: Code, name: str) -> Callable[[Any], Any]:
    """A function of an example that transforms its input, or input and target if the transform takes two."""
    function = _function(transform)
    takes_both = needed(function) == 2

    def transformed(item: Any) -> Any:
        if isinstance(item, Mapping):
            return function(item)
        check_pair(item, f"{name}: an example")
        inputs, target = item
        return function(inputs, target) if takes_both else (function(inputs), target)

    return transformed
