"""Where the examples of partitions stay: anywhere, or at places whose workers alone read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roundweave.storage.errors import UsageError


@dataclass(frozen=True)
class Placement:
    """Where the examples of each partition stay. By default any worker reads any of them.

    `names` has the place of each partition, and `kind` is the word for a place in messages, such as ``rack``.
    Columns are described by values that occur `told` times at least; 0 describes none. Raises `UsageError` for an
    invalid name.
    """

    kind: str = ""
    names: tuple[str, ...] = ()
    told: int = 1

    def __post_init__(self) -> None:
        for name in self.names:
            if not re.fullmatch(r"\w[\w-]*", name):
                takes = "give letters, digits, '_' and '-', not first"
                raise UsageError(f"{name!r} is no name of a {self.kind}; {takes}")

    @property
    def stays(self) -> bool:
        """Whether examples stay at places, so that no other process reads them."""
        return bool(self.names)

    @property
    def resources(self) -> list[str]:
        """The Dask resource that workers at each partition's place offer, such as ``rack-7``."""
        return [self.resource(partition) for partition in range(len(self.names))]

    def resource(self, partition: int) -> str:
        """Return the resource of one partition's place; empty if it has none."""
        return f"{self.kind}-{self.names[partition]}" if self.stays else ""

    def label(self, partition: int) -> str:
        """Return the name of a partition's place in messages and records; empty if it has none."""
        return f"{self.kind} {self.names[partition]}" if self.stays else ""


ANYWHERE = Placement()
