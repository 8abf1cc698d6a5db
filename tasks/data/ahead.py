"""Processes that read batches of examples before they are used, by torch's DataLoader."""

from __future__ import annotations

import multiprocessing
from collections.abc import Iterator, MutableMapping
from typing import Any
from weakref import WeakValueDictionary

import numpy as np
import torch

from tasks.data.examples import Examples
from tasks.data.reading import Reading, ReadingFailed

Key = tuple[Reading, np.ndarray, int]
"""What a loader makes a batch of: how it is read, its rows, int64 (row,), and its seed."""


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


class Loader:
    """Processes that read batches ahead; they stay while examples that were read by them are in use."""

    def __init__(self, workers: int) -> None:
        self._keys: list[Key] = []
        # Processes that are forked off a fork server hold no lock of a thread of this one.
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload([__name__])
        # The generator is the loader's own, since it would draw from the process's, which the network uses.
        self._loader = torch.utils.data.DataLoader(
            _Batches(),
            batch_size=None,
            sampler=self._keys,
            num_workers=workers,
            persistent_workers=True,
            generator=torch.Generator(),
            multiprocessing_context=context,
        )

    def batches(self, keys: list[Key]) -> Iterator[Examples]:
        """The batches of keys in order; raises `ReadingFailed`."""
        self._keys[:] = keys
        this = multiprocessing.current_process()
        marked, this.daemon = this.daemon, False  # workers of Dask are so marked, and may then start no process
        try:
            batches = iter(self._loader)
        finally:
            this.daemon = marked
        for batch in batches:
            if isinstance(batch, ReadingFailed):
                raise batch
            yield batch


_loaders: MutableMapping[int, Loader] = WeakValueDictionary()


class ReadAhead:
    """Keeps the loader of this process alive once it was used; another process has one of its own."""

    loader: Loader | None = None

    def __reduce__(self) -> tuple[type[ReadAhead], tuple[()]]:
        return ReadAhead, ()

    def batches(self, keys: list[Key], workers: int) -> Iterator[Examples]:
        """The batches of keys in order, read by so many processes ahead of their use; raises `ReadingFailed`."""
        self.loader = _loaders.get(workers) or Loader(workers)
        _loaders[workers] = self.loader
        yield from self.loader.batches(keys)
