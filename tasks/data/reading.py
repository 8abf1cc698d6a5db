"""How a batch of examples is read and prepared, by the user's functions and with seeded generators."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import islice
from math import inf
from typing import Any

import numpy as np

from storage.errors import RoundweaveError, located
from tasks.data.ahead import ReadingFailed
from tasks.data.collating import batch_of, check_pair, collated
from tasks.data.datasets import Dataset, Reader
from tasks.data.examples import Examples
from tasks.data.opened import Opened, opened
from tasks.data.sources.table import Source
from tasks.numerics.pinning import pinned
from tasks.user_code import Code


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
    def is_plain(self) -> bool:
        """Whether examples in memory are used as they are; there is nothing to read ahead of them."""
        return replace(self, workers=0) == Loading()

    @property
    def bound(self) -> float:
        """How many bytes of data sets a process holds besides the one in use."""
        return 0 if self.is_plain else inf if self.memory is None else self.memory


@dataclass(frozen=True)
class Reading:
    """Reads and prepares batches of what a source gives for a partition; a small value that loaders are sent.

    `partitions` is the number of partitions that the source is asked for; `held_out` means the examples to score
    with, and `dtype` is that of their floats.
    """

    source: Source
    partition: int
    partitions: int
    held_out: bool
    loading: Loading
    dtype: str

    @property
    def part(self) -> Examples | Reader:
        """The examples of the data set, which each process opens once."""
        return self._dataset.part(self.held_out)

    @property
    def opened(self) -> Opened:
        """What the source gives, as this process has opened it."""
        return opened(self.source, self.partition, self.partitions, self.loading.bound)

    @property
    def _dataset(self) -> Dataset:
        return self.opened.dataset

    @property
    def _transform(self) -> Code | None:
        return self.loading.held_out_transform if self.held_out else self.loading.transform

    def rows(self, rows: np.ndarray, seed: int) -> Examples:
        """The prepared batch of some rows, int64 (row,); what is drawn comes from the seed."""
        if self._transform is None and self.loading.collate is None:
            return self._seeded(seed, lambda: self._dataset.finished(self.part.read(rows), self.dtype))
        return self._seeded(seed, lambda: self._prepared(self.part.items(rows)))

    def next(self, stream: Iterator[Any], count: int, seed: int) -> Examples:
        """The prepared batch of the next examples of a stream, at most so many; see `rows`."""
        return self._seeded(seed, lambda: self._prepared(list(islice(stream, count))))

    def _prepared(self, items: Sequence[Any]) -> Examples:
        if self._transform is not None:
            items = list(map(_per_example(self._transform, str(self.source)), items))
        collate, name = self.loading.collate, str(self.source)
        batch = collated(items, name) if collate is None else batch_of(_function(collate)(list(items)), name)
        return self._dataset.finished(batch, self.dtype)

    def _seeded(self, seed: int, read: Callable[[], Examples]) -> Examples:
        """Read with the process's generators seeded; raises `ReadingFailed`, in a loader as in this process."""
        with pinned(seed, threads=1):  # as a loader has it
            try:
                return read()
            except RoundweaveError as error:
                raise ReadingFailed(str(error)) from error
            except Exception as error:
                raise ReadingFailed(f"{self.source}: {located(error)}") from error


@functools.lru_cache(maxsize=4)
def _function(code: Code) -> Callable[..., Any]:
    return code.load()


@functools.lru_cache(maxsize=4)
def _per_example(transform: Code, name: str) -> Callable[[Any], Any]:
    """A function of an example that transforms its input, or input and target if the transform takes two."""
    function = _function(transform)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [
        p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty
    ]

    def transformed(item: Any) -> Any:
        if isinstance(item, Mapping):
            return function(item)
        check_pair(item, name)
        inputs, target = item
        return function(inputs, target) if len(takes) == 2 else (function(inputs), target)

    return transformed
