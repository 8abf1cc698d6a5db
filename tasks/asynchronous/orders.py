"""Orders of arrival that need no cluster: one that is simulated from a seed, and that of a recorded run.

What comes next depends on what is in flight and on nothing before, so a run that was killed goes on in
the same order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from storage.errors import UsageError
from storage.rounds.commits import InFlight
from storage.rounds.store import RoundStore
from tasks.asynchronous.ledger import Ledger, recorded_round, standing
from tasks.numerics import derive_seed
from tasks.when import Asynchronous, Order, ServerRound


@dataclass(frozen=True)
class Seeded(Order):
    """A simulated process: a turn takes 1 / the partition's speed, times a factor of 0.5 to 1.5 drawn by the seed.

    `speeds` has one for each partition; without any, all are as fast.

    >>> rounds_taken = Seeded(0, speeds=(1.0, 0.1)).rounds(Asynchronous(), 1, {0: InFlight(), 1: InFlight()})
    >>> [next(rounds_taken).partitions[0] for _ in range(12)]
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    """

    seed: int
    speeds: tuple[float, ...] = ()

    def rounds(self, when: Asynchronous, first: int, in_flight: Mapping[int, InFlight]) -> Iterator[ServerRound]:
        """What each round takes in, without end."""
        ledger, turns = Ledger(when), {partition: item.push for partition, item in in_flight.items()}
        coming = [(self._end(partition, turn), partition) for partition, turn in turns.items()]
        waiting: list[tuple[float, int]] = []
        heapq.heapify(coming)
        while True:
            end, partition = heapq.heappop(coming)
            if not ledger.takes(partition):
                waiting.append((end, partition))
                continue
            closed = ledger.arrive(partition)
            turns[partition] += 1
            heapq.heappush(coming, (end + self._seconds(partition, turns[partition]), partition))
            if closed:
                for each in waiting:
                    heapq.heappush(coming, each)
                waiting = []
                yield closed

    def _end(self, partition: int, turn: int) -> float:
        """When a turn ends, added up as it is turn by turn."""
        end = 0.0
        for number in range(1, turn + 1):
            end += self._seconds(partition, number)
        return end

    def _seconds(self, partition: int, turn: int) -> float:
        speed = self.speeds[partition] if self.speeds else 1.0
        drawn = derive_seed(self.seed, "arrival", turn, partition, -1) / 2**63
        return (0.5 + drawn) / speed


@dataclass(frozen=True)
class Recorded(Order):
    """The order of arrival that the run at an address has recorded."""

    address: str

    def rounds(self, when: Asynchronous, first: int, in_flight: Mapping[int, InFlight]) -> Iterator[ServerRound]:
        """What each round took in; raises `UsageError` where there are no more, or none of an asynchronous run."""
        store = RoundStore(self.address)
        before = standing(store.log.read(first - 1).server, len(in_flight))
        for round in range(first, (store.shelf.newest or 0) + 1):
            commit = store.log.read(round)
            if commit.server is None:
                raise UsageError(f"{self.address} has no order of arrival: its rounds waited for all partitions")
            yield recorded_round(before, commit)
            before = commit.server
        raise UsageError(f"{self.address} has no order beyond round {store.shelf.newest}; give fewer --rounds")
