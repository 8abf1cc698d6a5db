"""Where the examples of partitions stay: anywhere, or each at a place, whose workers alone read them."""

from __future__ import annotations

import re
from dataclasses import dataclass

from roundweave.storage.errors import UsageError


@dataclass(frozen=True)
class Placement:
    """Where the examples of each partition stay; by default anywhere, and any worker reads any of them.

    `names` has the place of each partition, and `kind` is what messages call a place, such as ``rack``. Columns
    are described by values that occur `told` times at least, and not at all if it is 0. Raises `UsageError` for
    what cannot be a name.
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
        """The resource of one partition's place; empty if it has none."""
        return f"{self.kind}-{self.names[partition]}" if self.stays else ""

    def label(self, partition: int) -> str:
        """What messages and records call the place of a partition; empty if it has none."""
        return f"{self.kind} {self.names[partition]}" if self.stays else ""


ANYWHERE = Placement()
