"""Orders in which pushes arrive, for runs without a cluster: simulated from a seed, or read from a recorded run.

The next push depends only on what is in flight. A run that was killed and resumed therefore goes on in the same
order.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from roundweave.storage.errors import UsageError
from roundweave.storage.rounds.commits import InFlight
from roundweave.storage.rounds.store import RoundStore
from roundweave.tasks.algorithms.when import Asynchronous, Draw, Order, ServerRound
from roundweave.tasks.numerics.pinning import derive_seed
from roundweave.tasks.rounds.asynchronous.ledger import Ledger, recorded_round, standing


@dataclass(frozen=True)
class Seeded(Order):
    """An order that is simulated: a map takes 1 / speed, times a factor between 0.5 and 1.5 drawn from the seed.

    `speeds` has one number for each partition. Without speeds all partitions are equally fast. With a cohort, maps
    begin at equal distances in time, so that the time of a push follows from its number.

    >>> rounds_taken = Seeded(0, speeds=(1.0, 0.1)).rounds(Asynchronous(), 1, {0: InFlight(), 1: InFlight()})
    >>> [next(rounds_taken).partitions[0] for _ in range(12)]
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    """

    seed: int
    speeds: tuple[float, ...] = ()

    def rounds(
        self, when: Asynchronous, first: int, in_flight: Mapping[int, InFlight], draw: Draw = None
    ) -> Iterator[ServerRound]:
        """Yield the rounds of a server, without end."""
        ledger, pause = Ledger(when, first - 1, dict(in_flight), draw), draw and self._pause(len(in_flight))
        coming = [(self._end(partition, item.push, pause), partition) for partition, item in in_flight.items()]
        waiting: list[tuple[float, int]] = []
        heapq.heapify(coming)
        while True:
            end, partition = heapq.heappop(coming)
            if not ledger.takes(partition):
                waiting.append((end, partition))
                continue
            closed = ledger.arrive(partition)
            item = ledger.in_flight[partition := ledger.following]
            ledger.in_flight[partition] = replace(item, push=item.push + 1)
            begin = end if pause is None else item.push * pause
            heapq.heappush(coming, (begin + self._seconds(partition, item.push + 1), partition))
            if closed:
                for each in waiting:
                    heapq.heappush(coming, each)
                waiting = []
                yield closed

    def _end(self, partition: int, push: int, pause: float | None) -> float:
        """The simulated time of a push. Adding up the maps in order gives the same bits after a resume.

        With a cohort, a map begins a `pause` after the one before.
        """
        if pause is not None:
            return (push - 1) * pause + self._seconds(partition, push)
        end = 0.0
        for number in range(1, push + 1):
            end += self._seconds(partition, number)
        return end

    def _pause(self, cohort: int) -> float:
        """The mean time between two pushes if a `cohort` computes at any time.

        A partition whose map takes d seconds computes for a share d / (d + rest) of the time; all rest equally
        long. The shares add up to the cohort.
        """
        seconds, rest = [1 / speed for speed in self.speeds] or [1.0] * cohort, 1.0
        for _ in range(100):
            rest *= sum(each / (each + rest) for each in seconds) / cohort
        return 1 / sum(1 / (each + rest) for each in seconds)

    def _seconds(self, partition: int, push: int) -> float:
        speed = self.speeds[partition] if self.speeds else 1.0
        drawn = derive_seed(self.seed, "arrival", push, partition, -1) / 2**63
        return (0.5 + drawn) / speed


@dataclass(frozen=True)
class Recorded(Order):
    """The order in which pushes arrived in the run that is stored at an address."""

    address: str

    def rounds(
        self, when: Asynchronous, first: int, in_flight: Mapping[int, InFlight], draw: Draw = None
    ) -> Iterator[ServerRound]:
        """Yield the recorded rounds from `first` on.

        Raises `UsageError` if the run was not asynchronous, or if a round is asked for that it does not have.
        """
        store = RoundStore(self.address)
        before = standing(store.log.read(first - 1).server, in_flight)
        for round in range(first, (store.newest or 0) + 1):
            commit = store.log.read(round)
            if commit.server is None:
                raise UsageError(f"{self.address} has no order of arrival: its rounds waited for all partitions")
            yield recorded_round(before, commit)
            before = commit.server
        raise UsageError(f"{self.address} has no order beyond round {store.newest}; give fewer --rounds")
