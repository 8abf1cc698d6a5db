"""Communicators: how the engine exchanges values among ranks. A process without others is a group of one rank."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol


class Communicator(Protocol):
    """Exchanges values among `ranks` ranks, of which this is number `rank`, from 0.

    All ranks must call each function together. `sent` counts the bytes that this rank has sent to others.
    """

    rank: int
    ranks: int
    sent: int

    def all_gather(self, value: Any) -> list[Any]:
        """Send a value to all ranks, and return the values of all ranks in their order.

        Raises `Broken` if a rank is gone.
        """

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        """Send one of the `values` to each rank, and return the values sent to this rank, in order of the ranks.

        Raises `Broken` if a rank is gone.
        """


class Alone:
    """The communicator of a group of one rank, which gets back what it sends."""

    rank = sent = 0
    ranks = 1

    def all_gather(self, value: Any) -> list[Any]:
        return [value]

    def scatter(self, values: Sequence[Any]) -> list[Any]:
        return [*values]
