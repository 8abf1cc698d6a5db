"""The plan of an asynchronous round: which updates land in it, and who fetches. It does no work."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Protocol

from storage.rounds.commits import Hand
from tasks.when import Asynchronous


@dataclass(frozen=True)
class Intake:
    """What a server takes in at a round: whose updates land, and the partitions that go on from its state.

    Who lands and is not among the `fetching` goes on from the state before; who does not fetch at its next turn,
    from where it is. Whoever landed earlier and has not begun yet may fetch again.
    """

    partitions: tuple[int, ...]
    fetching: frozenset[int]


class Order(Protocol):
    """An order of arrival."""

    def intakes(self, when: Asynchronous, first: int, hands: Mapping[int, Hand]) -> Iterator[Intake]:
        """What is taken in at each round from the first on, where partitions have this in hand before it."""
        ...
