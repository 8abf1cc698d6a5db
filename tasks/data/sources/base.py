"""The interface of sources of examples."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from storage.errors import DataError

if TYPE_CHECKING:
    from tasks.data.examples import Dataset


class Source(Protocol):
    """A source of examples: a small value that is sent to workers, which then load the examples they need.

    A process loads equal sources only once.
    """

    @property
    def partitioned(self) -> bool:
        """Whether each partition is loaded on its own, as all together may not fit on one machine."""
        return False

    def __hash__(self) -> int:
        return object.__hash__(self)

    def load(self, partition: int, partitions: int) -> Dataset:
        """Load one partition if the source is `partitioned`, else everything; raises `DataError`."""
        ...

    def again(self, partition: int, partitions: int) -> Dataset | None:
        """Read the first examples once more if a user's code gives them; None for other sources."""
        return None


@dataclass(frozen=True)
class Each(Source):
    """A separate source for each partition; each loads all of its examples at once."""

    sources: tuple[Source, ...]

    partitioned = True

    def __str__(self) -> str:
        return ", ".join(map(str, self.sources))

    def load(self, partition: int, partitions: int) -> Dataset:
        """Load the source of a partition; raises `DataError` if there are not as many sources as partitions."""
        if partitions != len(self.sources):
            raise DataError(f"{len(self.sources)} data sets are as many partitions, not {partitions}")
        return self.sources[partition].load(0, 1)

    def again(self, partition: int, partitions: int) -> Dataset | None:
        return self.sources[partition].again(0, 1)
