"""Examples that are read where they are used, in this process or by others ahead of their use."""

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
from roundweave.tasks.data.examples import Examples, Move, grouped_passes, passes, tensors_of
from roundweave.tasks.data.reading import CURRENT, Reading, ReadingFailed
from roundweave.tasks.data.sources.own import Stream
from roundweave.tasks.data.splits.split import LARGEST_SCORE_BATCH, SCORE_BATCH
from roundweave.tasks.numerics.pinning import derive_seed

SHUFFLED = 1024
"""Of so many examples of a stream the next one is drawn."""

AHEAD = 2
"""How many batches each process reads ahead."""


class Loader:
    """Processes that read batches ahead; they stay while examples that were read by them are in use."""

    def __init__(self, workers: int) -> None:
        multiprocessing.current_process().daemon = False  # or a worker of Dask may start no processes
        # Processes that are forked off a fork server hold no lock of a thread of this one.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        self._ahead = AHEAD * workers
        self._pool = ProcessPoolExecutor(workers, context, _begin_process)
        finalize(self, self._pool.shutdown, wait=False, cancel_futures=True)

    def batches(self, reading: Reading, keys: Iterable[tuple[np.ndarray, int]]) -> Iterator[Examples]:
        """The batches of rows, int64 (row,), and seeds, in order; raises `ReadingFailed`."""
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
    """Let this process of a loader end when the process of the map dies. Ctrl-C ends the map's process alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


_loaders: MutableMapping[int, Loader] = WeakValueDictionary()


def forget_loaders() -> None:
    """Have new processes read ahead. The present ones hold the files that they have opened."""
    _loaders.clear()


@dataclass(frozen=True, eq=False)
class LoadedExamples:
    """Some rows, int64 (example,), of a partition's examples, which are read whenever they are used.

    They have what maps and scores use of `Examples`. `move` brings their batches to a device, and `loader` has the
    loader of this process once it was used.
    """

    reading: Reading
    rows: np.ndarray
    move: Move | None = None
    loader: list[Loader] = field(default_factory=list, repr=False)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "loader": []}

    def __len__(self) -> int:
        return len(self.rows)

    def on(self, move: Move) -> LoadedExamples:
        """The same examples, whose batches `move` brings to a device."""
        return replace(self, move=move)

    def as_scored(self) -> LoadedExamples:
        """The same examples, prepared as held-out ones are."""
        loading = self.reading.loading
        prepared = replace(loading, transform=loading.held_out_transform)
        return replace(self, reading=replace(self.reading, loading=prepared))

    def first(self, count: int) -> Examples:
        """The first examples, at most so many, in memory."""
        return next(replace(self, rows=self.rows[:count]).slices(count))

    def every(self, step: int) -> LoadedExamples:
        """Each so many-th example."""
        return replace(self, rows=self.rows[::step])

    def slices(self, size: int) -> Iterator[Examples]:
        """All examples in order, in batches of `size`; the last may be smaller.

        What is drawn follows from the numbers of a batch's rows, whoever has them.
        """
        part = self.reading.part
        if isinstance(part, Stream):
            return self._moved(self._streamed([part.at(self.rows)], size, 0, self.rows[::size].tolist()))
        batches = [self.rows[start : start + size] for start in range(0, len(self), size)]
        return self._read((rows, derive_seed(0, "batch", int(rows[0]))) for rows in batches)

    def batches(self, size: int | None, steps: int, seed: int) -> Iterator[Examples]:
        """Draw so many batches; see `roundweave.batches`. All that is drawn comes from the seed."""
        size, part = min(size or len(self), len(self)), self.reading.part
        if isinstance(part, Stream):
            shuffled = self._passes(part, size * steps, np.random.default_rng(seed))
            return islice(self._moved(self._streamed(shuffled, size, seed)), steps)
        groups = part.groups if isinstance(part, Reader) else None
        how = (size, steps, seed)
        orders: Iterable[Any] = (
            passes(len(self), *how) if groups is None else grouped_passes(groups[self.rows], *how)
        )
        drawn = (order[start : start + size] for order in orders for start in range(0, len(order), size))
        numbered = ((self.rows[np.asarray(places)], number) for number, places in enumerate(drawn))
        return self._read((rows, derive_seed(seed, "batch", number)) for rows, number in numbered)

    def _read(self, keys: Iterable[tuple[np.ndarray, int]]) -> Iterator[Examples]:
        """The batches of rows, int64 (row,), and seeds."""
        if workers := self.reading.loading.workers:
            self.loader[:] = [_loaders.get(workers) or _loaders.setdefault(workers, Loader(workers))]
            reading = replace(
                self.reading, owner=CURRENT.get() or self.reading.owner
            )  # a map's knows who takes part
            return self._moved(self.loader[0].batches(reading, keys))
        return self._moved(self.reading.rows(*key) for key in keys)

    def _moved(self, batches: Iterator[Examples]) -> Iterator[Examples]:
        return batches if self.move is None else (batch.on(self.move) for batch in batches)

    def _streamed(
        self, passes: Iterable[Iterator[Any]], size: int, seed: int, numbers: Iterable[int] | None = None
    ) -> Iterator[Examples]:
        """The batches of passes over a stream, by default numbered from 0; a pass's last may be smaller."""
        counts = [min(size, len(self) - start) for start in range(0, len(self), size)]
        each = ((items, count) for items in passes for count in counts)
        for (items, count), number in zip(each, itertools.count() if numbers is None else numbers, strict=False):
            yield self.reading.next(items, count, derive_seed(seed, "batch", number))

    def _passes(self, stream: Stream, wanted: int, generator: np.random.Generator) -> Iterator[Iterator[Any]]:
        """Passes over a stream without end, shuffled; if fewer than all are wanted, from a place that is drawn."""
        start = int(generator.integers(len(self))) if wanted < len(self) else 0
        while True:
            ordered = chain(islice(stream.at(self.rows), start, None), islice(stream.at(self.rows), start))
            yield _shuffled(ordered, generator)


AnyExamples = Examples | LoadedExamples
"""Examples of a partition, in memory or read where they are used."""

Scored = tuple[AnyExamples, ...]
"""The examples that a partition scores for each scorer of a run, in the order of these."""


@dataclass(frozen=True)
class Partition:
    """One partition's examples: those to train on, and those that it scores for each scorer of the run."""

    train: AnyExamples
    scored: Scored = ()


SCORED_BYTES = 1 << 21
"""So many bytes of held-out examples are scored at once: more take memory from what a network computes of them."""


def score_batch(examples: AnyExamples) -> int:
    """How many held-out examples are scored at once, a part of the arithmetic that follows from their size alone.

    Those that are read where they are used, whose size is not known before, are scored by the fewest.
    """
    if isinstance(examples, LoadedExamples):
        return SCORE_BATCH
    size = sum(tensor.nbytes for tensor in tensors_of(examples)) // max(1, len(examples))
    return max(SCORE_BATCH, min(LARGEST_SCORE_BATCH, SCORED_BYTES // max(1, size)))


BlockExamples = Mapping[int, Partition]
"""The examples of the partitions of a block that take part in a round, by partition, ascending."""


def _shuffled(items: Iterator[Any], generator: np.random.Generator) -> Iterator[Any]:
    """The items of a stream, each drawn from the next `SHUFFLED`."""
    held = list(islice(items, SHUFFLED))
    for item in items:
        place = int(generator.integers(len(held)))
        yield held[place]
        held[place] = item
    yield from (held[place] for place in generator.permutation(len(held)))
