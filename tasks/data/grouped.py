"""Examples that are stored in groups of rows, such as row groups or chunks, each of which is read as a whole."""

from __future__ import annotations

import functools
from abc import abstractmethod

import numpy as np
import torch

from tasks.data.datasets import Reader
from tasks.data.examples import Examples, tensors_of
from tasks.devices import moved

HELD = 4
"""How many groups a reader holds, those that were used last."""


class Grouped(Reader):
    """Reads groups of examples that follow one another, and holds the last ones.

    `starts`, int64 (group + 1,), has the first row of each group and, at its end, the number of examples.
    """

    starts: np.ndarray

    @abstractmethod
    def group(self, number: int) -> Examples:
        """Read the examples of a group; raises `DataError`."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def groups(self) -> np.ndarray:
        """The group of each example, int64 (example,)."""
        return np.repeat(np.arange(len(self.starts) - 1), np.diff(self.starts))

    def read(self, rows: np.ndarray) -> Examples:
        """The examples at some rows, int64 (row,); a group is read unless it is held."""
        numbers = np.searchsorted(self.starts, rows, "right") - 1
        # In the order in which they come, so that the last one is held for the next batch.
        wanted = numbers[np.sort(np.unique(numbers, return_index=True)[1])]
        if len(wanted) == 1:
            return self._held(int(wanted[0])).read(rows - self.starts[wanted[0]])
        whole = None
        for number in wanted.tolist():
            places = np.flatnonzero(numbers == number)
            part = self._held(number).read(rows[places] - self.starts[number])
            if whole is None:
                whole = moved(part, lambda tensor: tensor.new_empty((len(rows), *tensor.shape[1:])))
            for source, target in zip(tensors_of(part), tensors_of(whole), strict=True):
                target[torch.from_numpy(places)] = source
        assert whole is not None
        return whole

    @functools.cached_property
    def _held(self) -> functools._lru_cache_wrapper[Examples]:
        return functools.lru_cache(HELD)(self.group)
