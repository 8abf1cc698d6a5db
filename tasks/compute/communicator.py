"""What passes between ranks, as the engine sees it; a process that is alone is a group of one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Communicator(Protocol):
    """Exchanges values among `ranks` processes, of which this is number `rank`; all call each function together.

    `sent` counts the bytes that this rank has sent to others.
    """

    rank: int
    ranks: int
    sent: int

    def all_gather(self, value: Any) -> list[Any]:
        """The values of all ranks, in their order; raises `Broken` where one is gone."""
        ...

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        """The value that each rank has for this one, in their order; `values` has one for each rank."""
        ...


class Alone:
    """The communicator of one process, which has what it sends."""

    rank = sent = 0
    ranks = 1

    def all_gather(self, value: Any) -> list[Any]:
        """The value itself."""
        return [value]

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        """The values themselves, of which there is one."""
        return [*values]
