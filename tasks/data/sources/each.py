"""Several sources, each of which is one partition."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import DataError
from tasks.data.examples import Dataset
from tasks.data.sources.base import Source


@dataclass(frozen=True)
class Each(Source):
    """What each partition's own source loads; those load all of their examples at once."""

    sources: tuple[Source, ...]

    @property
    def partitioned(self) -> bool:
        """Always."""
        return True

    def __str__(self) -> str:
        return ", ".join(map(str, self.sources))

    def load(self, partition: int, partitions: int) -> Dataset:
        """The examples of one source; raises `DataError` where there are not as many as partitions."""
        if partitions != len(self.sources):
            raise DataError(f"{len(self.sources)} data sets are as many partitions, not {partitions}")
        return self.sources[partition].load(0, 1)
