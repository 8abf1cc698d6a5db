"""Where examples come from."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Protocol

from tasks.data.examples import Dataset


class Source(Hashable, Protocol):
    """Where examples come from."""

    @property
    def partitioned(self) -> bool:
        """Whether each partition is loaded on its own, because all together may be too big for one machine."""
        ...

    def load(self, partition: int, partitions: int) -> Dataset:
        """One partition where `partitioned`, else everything; raises `DataError`."""
        ...
