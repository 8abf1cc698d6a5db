"""Examples that are read where they are used, in this process or ahead by those of torch's DataLoader."""

from __future__ import annotations

import functools
import inspect
import multiprocessing
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from itertools import chain, islice
from typing import Any

import numpy as np
import torch

from storage.errors import DataError, located
from tasks.data.collating import batch_of, collated
from tasks.data.datasets import Dataset, Reader
from tasks.data.examples import Examples, Move
from tasks.data.opened import opened
from tasks.data.orders import grouped_passes, passes
from tasks.data.sources.table import Source
from tasks.numerics import derive_seed, pinned
from tasks.user_code import Code

SHUFFLED = 1024
"""Of so many examples of a stream the next one is drawn."""

Key = tuple["Reading", np.ndarray, int]
"""What a loader makes a batch of: how it is read, its rows, int64 (row,), and its seed."""


class ReadingFailed(Exception):
    """Examples could not be read or prepared; the text says why. To a round it is an error of the map."""


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
        """Whether examples in memory need nothing of this."""
        return self == Loading()


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
    def _dataset(self) -> Dataset:
        return opened(self.source, self.partition, self.partitions, self.loading.memory or 0)[0]

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
            items = list(map(_per_example(self._transform), items))
        collate, name = self.loading.collate, str(self.source)
        batch = collated(items, name) if collate is None else batch_of(_function(collate)(list(items)), name)
        return self._dataset.finished(batch, self.dtype)

    @staticmethod
    def _seeded(seed: int, read: Callable[[], Examples]) -> Examples:
        """Read with the process's generators seeded; raises `ReadingFailed`, in a loader as in this process."""
        with pinned(seed, threads=1):  # as a loader has it
            try:
                return read()
            except Exception as error:
                raise ReadingFailed(located(error)) from error


@functools.lru_cache(maxsize=4)
def _function(code: Code) -> Callable[..., Any]:
    return code.load()


@functools.lru_cache(maxsize=4)
def _per_example(transform: Code) -> Callable[[Any], Any]:
    """A function of an example that transforms its input, or input and target if the transform takes two."""
    function = _function(transform)
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    takes = [
        p for p in inspect.signature(function).parameters.values() if p.kind in kinds and p.default is p.empty
    ]

    def transformed(item: Any) -> Any:
        if not isinstance(item, tuple | list):
            return function(item)
        inputs, target = item
        return function(inputs, target) if len(takes) == 2 else (function(inputs), target)

    return transformed


@dataclass(frozen=True, eq=False)
class LoadedExamples:
    """Some rows, int64 (example,), of a partition's examples, which are read whenever they are used.

    They have what maps and scores use of `Examples`. `move` brings their batches to a device.
    """

    reading: Reading
    rows: np.ndarray
    move: Move | None = None

    def __len__(self) -> int:
        return len(self.rows)

    def on(self, move: Move) -> LoadedExamples:
        """The same examples, whose batches `move` brings to a device."""
        return replace(self, move=move)

    def first(self, count: int) -> Examples:
        """The first examples, at most so many, in memory."""
        return next(replace(self, rows=self.rows[:count]).slices(count))

    def every(self, step: int) -> LoadedExamples:
        """Each so many-th example."""
        return replace(self, rows=self.rows[::step])

    def slices(self, size: int) -> Iterator[Examples]:
        """All examples in order, in batches of `size`; the last may be smaller."""
        if self._is_streamed:
            yield from self._moved(self._streamed([self._items()], size, 0))
            return
        yield from self._read(self.rows[start : start + size] for start in range(0, len(self), size))

    def batches(self, size: int | None, steps: int, seed: int) -> Iterator[Examples]:
        """Draw so many batches; see `roundweave.batches`. All that is drawn comes from the seed."""
        size = min(size or len(self), len(self))
        if self._is_streamed:
            passes = self._passes(size * steps, np.random.default_rng(seed))
            yield from islice(self._moved(self._streamed(passes, size, seed)), steps)
            return
        yield from self._read(self._drawn(size, steps, seed), seed)

    @property
    def _is_streamed(self) -> bool:
        part = self.reading.part
        return isinstance(part, Reader) and part.streamed

    def _drawn(self, size: int, steps: int, seed: int) -> Iterator[np.ndarray]:
        """The rows of each batch, int64 (row,)."""
        part = self.reading.part
        groups = None if isinstance(part, Examples) else part.groups
        orders: Iterator[Any] = passes(len(self), size, steps, seed)
        if groups is not None:
            orders = grouped_passes(groups[self.rows], size, steps, seed)
        for order in orders:
            for start in range(0, len(order), size):
                yield self.rows[np.asarray(order[start : start + size])]

    def _read(self, batches: Iterator[np.ndarray], seed: int = 0) -> Iterator[Examples]:
        keys = [(self.reading, rows, derive_seed(seed, "batch", number)) for number, rows in enumerate(batches)]
        workers = self.reading.loading.workers
        yield from self._moved(read_ahead(keys, workers) if workers else map(read_batch, keys))

    def _moved(self, batches: Iterator[Examples]) -> Iterator[Examples]:
        yield from batches if self.move is None else (batch.on(self.move) for batch in batches)

    def _streamed(self, passes: Iterable[Iterator[Any]], size: int, seed: int) -> Iterator[Examples]:
        """The batches of passes over a stream; the last batch of a pass may be smaller."""
        number = 0
        for items in passes:
            for start in range(0, len(self), size):
                count = min(size, len(self) - start)
                yield self.reading.next(items, count, derive_seed(seed, "batch", number))
                number += 1

    def _passes(self, wanted: int, generator: np.random.Generator) -> Iterator[Iterator[Any]]:
        """Passes over a stream without end, shuffled; if fewer than all are wanted, from a place that is drawn."""
        start = int(generator.integers(len(self))) if wanted < len(self) else 0
        while True:
            yield _shuffled(chain(islice(self._items(), start, None), islice(self._items(), start)), generator)

    def _items(self) -> Iterator[Any]:
        """The examples of a stream at the rows, in the stream's order; raises `DataError` if it is too short."""
        part = self.reading.part
        assert isinstance(part, Reader)
        chosen, read = np.zeros(len(part), bool), 0
        chosen[self.rows] = True
        for item in islice(part.stream(), len(part)):
            if chosen[read]:
                yield item
            read += 1
        if read < len(part):
            raise DataError(f"{self.reading.source} says that it has {len(part)} examples, and ends after {read}")


AnyExamples = Examples | LoadedExamples
"""Examples of a partition, in memory or read where they are used."""


def _shuffled(items: Iterator[Any], generator: np.random.Generator) -> Iterator[Any]:
    """The items of a stream, each drawn from the next `SHUFFLED`."""
    held = list(islice(items, SHUFFLED))
    for item in items:
        place = int(generator.integers(len(held)))
        yield held[place]
        held[place] = item
    yield from (held[place] for place in generator.permutation(len(held)))


def read_batch(key: Key) -> Examples:
    """The batch of a key; raises `ReadingFailed`."""
    reading, rows, seed = key
    return reading.rows(rows, seed)


class _Batches(torch.utils.data.Dataset[Any]):
    """What torch's loaders are given: it makes the batch of a key, or gives the error that this raises."""

    def __getitem__(self, key: Key) -> Examples | ReadingFailed:
        try:
            return read_batch(key)
        except ReadingFailed as error:
            return error


@functools.lru_cache(maxsize=1)
def _loader(workers: int) -> tuple[Any, list[Key]]:
    """A loader whose processes stay, and the list of the keys that it reads next."""
    keys: list[Key] = []
    # Processes that are forked off a fork server hold no lock of a thread of this one.
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload([__name__])
    # The generator is the loader's own, since it would draw from the process's, which the network uses.
    loader = torch.utils.data.DataLoader(
        _Batches(),
        batch_size=None,
        sampler=keys,
        num_workers=workers,
        persistent_workers=True,
        generator=torch.Generator(),
        multiprocessing_context=context,
    )
    return loader, keys


def read_ahead(keys: list[Key], workers: int) -> Iterator[Examples]:
    """The batches of keys in order, read by so many processes ahead of their use; raises `ReadingFailed`."""
    loader, wanted = _loader(workers)
    wanted[:] = keys
    this = multiprocessing.current_process()
    marked, this.daemon = this.daemon, False  # workers of Dask are so marked, and may then start no process
    try:
        batches = iter(loader)
    finally:
        this.daemon = marked
    for batch in batches:
        if isinstance(batch, ReadingFailed):
            raise batch
        yield batch
