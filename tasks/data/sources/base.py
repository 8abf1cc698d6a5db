"""Where examples come from."""

from __future__ import annotations

from typing import Protocol

from tasks.data.examples import Dataset


class Source(Protocol):
    """Where examples come from: a value that pickles small, and loads on the worker that needs the examples."""

    @property
    def partitioned(self) -> bool:
        """Whether each partition is loaded on its own, because all together may be too big for one machine."""
        return False

    def __hash__(self) -> int:
        """Of the value: equal sources are loaded once."""
        return object.__hash__(self)

    def load(self, partition: int, partitions: int) -> Dataset:
        """One partition where `partitioned`, else everything; raises `DataError`."""
        ...
