"""The plan of an asynchronous round: which updates land in it, in what order, and who fetches. It does no work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from storage.rounds.commits import Hand
from tasks.when import Asynchronous


@dataclass(frozen=True)
class Landing:
    """How a partition's update lands in a round: its place in the order of arrival at each shard of the server."""

    partition: int
    places: tuple[int, ...] = (0,)


@dataclass(frozen=True)
class Intake:
    """What a server takes in at a round: the updates that land, and the partitions that go on from its state.

    Who lands and is not among the `fetching` goes on from the state before; who does not fetch at its next turn,
    from where it is. Whoever landed earlier and has not begun yet may fetch again.
    """

    landings: tuple[Landing, ...]
    fetching: frozenset[int]

    @property
    def partitions(self) -> list[int]:
        """Whose updates land."""
        return [landing.partition for landing in self.landings]


class Order(Protocol):
    """An order of arrival."""

    def intakes(self, when: Asynchronous, first: int, hands: Mapping[int, Hand]) -> Iterator[Intake]:
        """What is taken in at each round from the first on, where partitions have this in hand before it."""
        ...
