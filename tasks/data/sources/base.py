"""Where examples come from."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from storage.errors import DataError

if TYPE_CHECKING:
    from tasks.data.examples import Dataset


class Source(Protocol):
    """Where examples come from: a value that pickles small, and loads on the worker that needs the examples.

    Equal sources are loaded once.
    """

    @property
    def partitioned(self) -> bool:
        """Whether each partition is loaded on its own, because all together may be too big for one machine."""
        return False

    def __hash__(self) -> int:
        return object.__hash__(self)

    def load(self, partition: int, partitions: int) -> Dataset:
        """One partition where `partitioned`, else everything; raises `DataError`."""
        ...

    def again(self, partition: int, partitions: int) -> Dataset | None:
        """The first examples that `load` gives, read once more, where the user's code decides them; else None."""
        return None


@dataclass(frozen=True)
class Each(Source):
    """What each partition's own source loads, all of its examples at once."""

    sources: tuple[Source, ...]

    partitioned = True

    def __str__(self) -> str:
        return ", ".join(map(str, self.sources))

    def load(self, partition: int, partitions: int) -> Dataset:
        """The examples of one source; raises `DataError` where there are not as many as partitions."""
        if partitions != len(self.sources):
            raise DataError(f"{len(self.sources)} data sets are as many partitions, not {partitions}")
        return self.sources[partition].load(0, 1)

    def again(self, partition: int, partitions: int) -> Dataset | None:
        return self.sources[partition].again(0, 1)
