"""Examples that are read where they are used, in this process or ahead of time in other processes."""

from __future__ import annotations

import itertools
import multiprocessing
import os
import signal
import threading
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, MutableMapping
from concurrent.futures import BrokenExecutor, Future, ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import chain, islice
from typing import Any
from weakref import WeakValueDictionary, finalize

import numpy as np

from roundweave.storage.errors import one_line
from roundweave.tasks.data.datasets import Reader
from roundweave.tasks.data.examples import Examples, Move, grouped_passes, passes, tensors_of, used_of
from roundweave.tasks.data.reading import CURRENT, Reading, ReadingFailed
from roundweave.tasks.data.sources.own import Stream
from roundweave.tasks.data.splits.split import LARGEST_SCORE_BATCH, SCORE_BATCH
from roundweave.tasks.numerics.pinning import derive_seed

SHUFFLED = 1024
"""The number of buffered examples of a stream among which the next one is drawn."""

AHEAD = 2
"""The number of batches that each process reads ahead."""


class Loader:
    """Processes that read batches ahead. They stay as long as examples that they read are in use."""

    def __init__(self, workers: int) -> None:
        multiprocessing.current_process().daemon = False  # else a Dask worker may not start processes
        # Processes of a fork server hold no lock of this process's threads.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._ahead = AHEAD * workers
        self._pool = ProcessPoolExecutor(workers, context, _begin_process)
        finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def batches(self, reading: Reading, keys: Iterable[tuple[np.ndarray, int]]) -> Iterator[Examples]:
        """Yield the batches of rows, int64 (row,), and seeds, in order. Raises `ReadingFailed`."""
        left, begun, submit = iter(keys), deque[Future[Examples]](), self._pool.submit
        try:
            while True:
                begun.extend(submit(reading.rows, *key) for key in islice(left, self._ahead - len(begun)))
                if not begun:
                    return
                yield begun.popleft().result()
        except BrokenExecutor as error:
            forget_loaders()
            raise ReadingFailed(f"a process that reads examples ahead ended: {one_line(error)}") from error
        finally:
            for batch in begun:
                batch.cancel()


def _begin_process() -> None:
    """Let this process of a loader end when the process of the map dies. Ctrl-C ends only the map's process."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


_loaders: MutableMapping[int, Loader] = WeakValueDictionary()


def forget_loaders() -> None:
    """Start new processes for reading ahead. The present ones hold the files that they have opened."""
    _loaders.clear()


@dataclass(frozen=True, eq=False)
class LoadedExamples:
    """Some rows, int64 (example,), of a partition's examples, read whenever they are used.

    They have the methods of `Examples` that maps and scores use. `move` brings their batches to a device. `loader`
    is the loader of this process, once it was used.
    """

    reading: Reading
    rows: np.ndarray
    move: Move | None = None
    loader: list[Loader] = field(default_factory=list, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "loader": []}

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.rows)

    def on(self, move: Move) -> LoadedExamples:
        """Return the same examples. `move` brings their batches to a device."""
        return replace(self, move=move)

    def as_scored(self) -> LoadedExamples:
        """Return the same examples, prepared like held-out ones."""
        loading = self.reading.loading
        prepared = replace(loading, transform=loading.held_out_transform)
        return replace(self, reading=replace(self.reading, loading=prepared))

    def first(self, count: int) -> Examples:
        """Return the first examples, at most so many, in memory."""
        return next(replace(self, rows=self.rows[:count]).slices(count))

    def every(self, step: int) -> LoadedExamples:
        """Return every `step`-th example, beginning with the first."""
        return replace(self, rows=self.rows[::step])

    def slices(self, size: int) -> Iterator[Examples]:
        """Yield all examples in order, in batches of `size`. The last batch may be smaller.

        The draws follow from the row numbers of a batch, whoever reads the batch.
        """
        part, every = self.reading.part, self.rows
        if isinstance(part, Stream):
            return self._moved(self._streamed([part.at(every)], len(self), size, 0, every[::size].tolist()))
        batches = [every[start : start + size] for start in range(0, len(self), size)]
        return self._read((rows, derive_seed(0, "batch", int(rows[0]))) for rows in batches)

    def batches(self, size: int | None, steps: int, seed: int, whole: int = 1) -> Iterator[Examples]:
        """Draw so many batches; see `roundweave.batches`. All draws come from the seed."""
        used, part = used_of(len(self), whole), self.reading.part
        size = min(size or used, used)
        if isinstance(part, Stream):
            shuffled = self._passes(part, size * steps, np.random.default_rng(seed))
            return islice(self._moved(self._streamed(shuffled, used, size, seed)), steps)
        groups = part.groups if isinstance(part, Reader) else None
        how = (size, steps, seed, used)
        orders: Iterable[Any] = (
            passes(len(self), *how) if groups is None else grouped_passes(groups[self.rows], *how)
        )
        drawn = (order[start : start + size] for order in orders for start in range(0, len(order), size))
        numbered = ((self.rows[np.asarray(places)], number) for number, places in enumerate(drawn))
        return self._read((rows, derive_seed(seed, "batch", number)) for rows, number in numbered)

    def _read(self, keys: Iterable[tuple[np.ndarray, int]]) -> Iterator[Examples]:
        """Yield the batches of rows, int64 (row,), and seeds."""
        if workers := self.reading.loading.workers:
            self.loader[:] = [_loaders.get(workers) or _loaders.setdefault(workers, Loader(workers))]
            reading = replace(
                self.reading, owner=CURRENT.get() or self.reading.owner
            )  # the partition of a map knows the cohort
            return self._moved(self.loader[0].batches(reading, keys))
        return self._moved(self.reading.rows(*key) for key in keys)

    def _moved(self, batches: Iterator[Examples]) -> Iterator[Examples]:
        return batches if self.move is None else (batch.on(self.move) for batch in batches)

    def _streamed(
        self, passes: Iterable[Iterator[Any]], used: int, size: int, seed: int, numbers: Iterable[int] = ()
    ) -> Iterator[Examples]:
        """Yield batches of passes over so many `used` examples, numbered from 0 by default.

        The last may be smaller.
        """
        counts = [min(size, used - start) for start in range(0, used, size)]
        each = ((items, count) for items in passes for count in counts)
        for (items, count), number in zip(each, numbers or itertools.count(), strict=False):
            yield self.reading.next(items, count, derive_seed(seed, "batch", number))

    def _passes(self, stream: Stream, wanted: int, generator: np.random.Generator) -> Iterator[Iterator[Any]]:
        """Yield passes over a stream without end, shuffled.

        If a pass takes fewer than all, it starts at a drawn place.
        """
        start = int(generator.integers(len(self))) if wanted < len(self) else 0
        while True:
            ordered = chain(islice(stream.at(self.rows), start, None), islice(stream.at(self.rows), start))
            yield _shuffled(ordered, generator)


AnyExamples = Examples | LoadedExamples
"""Examples of a partition, in memory or read where they are used."""

Scored = tuple[AnyExamples, ...]
"""The examples that a partition scores for each scorer of a run, in the order of the scorers."""


@dataclass(frozen=True)
class Partition:
    """One partition's examples: those to train on, and those that it scores for each scorer of the run."""

    train: AnyExamples
    scored: Scored = ()


SCORED_BYTES = 1 << 21
"""The bytes of held-out examples that are scored at once. More would take memory from the network's outputs."""


def score_batch(examples: AnyExamples) -> int:
    """Return how many held-out examples are scored at once. The number follows from their size alone.

    Examples that are read where they are used have no known size. They are scored in the smallest batches.
    """
    if isinstance(examples, LoadedExamples):
        return SCORE_BATCH
    size = sum(tensor.nbytes for tensor in tensors_of(examples)) // max(1, len(examples))
    return max(SCORE_BATCH, min(LARGEST_SCORE_BATCH, SCORED_BYTES // max(1, size)))


BlockExamples = Mapping[int, Partition]
"""The examples of the partitions of a block that take part in a round, by partition, ascending."""


def _shuffled(items: Iterator[Any], generator: np.random.Generator) -> Iterator[Any]:
    """Yield the items of a stream, each drawn from the next `SHUFFLED`."""
    held = list(islice(items, SHUFFLED))
    for item in items:
        place = int(generator.integers(len(held)))
        yield held[place]
        held[place] = item
    yield from (held[place] for place in generator.permutation(len(held)))
