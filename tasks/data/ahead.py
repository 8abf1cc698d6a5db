"""Batches that processes of torch's DataLoader read ahead of their use."""

from __future__ import annotations

import multiprocessing
import os
import threading
from collections.abc import Iterator, MutableMapping, Sequence
from typing import Any, Protocol
from weakref import WeakValueDictionary

import numpy as np
import torch

from storage.errors import one_line
from tasks.data.examples import Examples


class Readable(Protocol):
    """A small value that reads batches, and that loaders are sent."""

    def rows(self, rows: np.ndarray, seed: int) -> Examples:
        """The batch of some rows, int64 (row,); what is drawn comes from the seed. Raises `ReadingFailed`."""
        ...


Key = tuple[Readable, np.ndarray, int]
"""What a batch is made of: what reads it, its rows, int64 (row,), and its seed."""


class ReadingFailed(Exception):
    """Examples could not be read or prepared; the text says why. To a round it is an error of the map."""


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


def _end_with_parent(number: int) -> None:
    """Let this process of a loader end when that of the map dies; to torch the fork server is its parent."""
    parent = multiprocessing.parent_process()
    assert parent is not None

    def follow() -> None:
        parent.join()
        os._exit(1)

    threading.Thread(target=follow, daemon=True).start()


class _Wanted:
    """The keys that a loader reads next."""

    keys: Sequence[Key] = ()

    def __iter__(self) -> Iterator[Key]:
        return iter(self.keys)


class Loader:
    """Processes that read batches ahead; they stay while examples that were read by them are in use."""

    def __init__(self, workers: int) -> None:
        self._wanted = _Wanted()
        # Processes that are forked off a fork server hold no lock of a thread of this one.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["tasks.data.loading"])
        # The generator is the loader's own, since it would draw from the process's, which the network uses.
        self._loader = torch.utils.data.DataLoader(
            _Batches(),
            batch_size=None,
            sampler=self._wanted,
            num_workers=workers,
            persistent_workers=True,
            worker_init_fn=_end_with_parent,
            generator=torch.Generator(),
            multiprocessing_context=context,
        )

    def batches(self, keys: Sequence[Key]) -> Iterator[Examples]:
        """The batches of keys in order; raises `ReadingFailed`."""
        self._wanted.keys = keys
        this = multiprocessing.current_process()
        marked, this.daemon = this.daemon, False  # workers of Dask are so marked, and may then start no process
        try:
            batches = iter(self._loader)
        finally:
            this.daemon = marked
        for number in range(len(keys)):
            if self._wanted.keys is not keys:  # others have been begun between two of these batches
                yield from map(read_batch, keys[number:])
                return
            yield _next_of(batches)


def _next_of(batches: Iterator[Examples | ReadingFailed]) -> Examples:
    """The next batch of a loader; raises `ReadingFailed`, also if a process of the loader has died."""
    try:
        batch = next(batches)
    except RuntimeError as error:
        forget_loaders()
        raise ReadingFailed(f"a process that reads examples ahead ended: {one_line(error)}") from error
    if isinstance(batch, ReadingFailed):
        try:
            raise batch
        finally:
            del batch  # its traceback has this frame: in a circle, the loader's processes would end after seconds
    return batch


_loaders: MutableMapping[int, Loader] = WeakValueDictionary()


def forget_loaders() -> None:
    """Have new processes read ahead, since the present ones hold what they have opened."""
    _loaders.clear()


class ReadAhead:
    """Keeps the loader of this process alive once it was used; another process has one of its own."""

    loader: Loader | None = None

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[()]]:
        return ReadAhead, ()

    def batches(self, keys: Sequence[Key], workers: int) -> Iterator[Examples]:
        """The batches of keys in order, read by so many processes ahead of their use; raises `ReadingFailed`."""
        self.loader = _loaders.get(workers) or Loader(workers)
        _loaders[workers] = self.loader
        yield from self.loader.batches(keys)
