"""Examples that are read where they are used, in this process or ahead by those of torch's DataLoader."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any

import numpy as np

from storage.errors import DataError
from tasks.data.ahead import ReadAhead, read_batch
from tasks.data.datasets import Reader
from tasks.data.examples import Examples, Move
from tasks.data.orders import grouped_passes, passes
from tasks.data.reading import Reading
from tasks.numerics.pinning import derive_seed

SHUFFLED = 1024
"""Of so many examples of a stream the next one is drawn."""


@dataclass(frozen=True, eq=False)
class LoadedExamples:
    """Some rows, int64 (example,), of a partition's examples, which are read whenever they are used.

    They have what maps and scores use of `Examples`. `move` brings their batches to a device.
    """

    reading: Reading
    rows: np.ndarray
    move: Move | None = None
    loader: ReadAhead = field(default_factory=ReadAhead, repr=False)

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
        yield from self._moved(self.loader.batches(keys, workers) if workers else map(read_batch, keys))

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
