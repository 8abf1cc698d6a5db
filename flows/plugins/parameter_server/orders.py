"""In which order pushes arrive at a parameter server, and which of them make up which round.

Without a cluster the order is simulated from a seed, or read from a recorded run. The next push depends only on
what is in flight, so that a run that was killed and resumed goes on in the same order. Nothing here computes an
update or a state.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from roundweave.storage.errors import StoreDamaged, UsageError
from roundweave.storage.rounds.commits import Commit, InFlight, ServerRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.tasks.algorithms.when import Asynchronous
from roundweave.tasks.numerics.pinning import derive_seed


@dataclass(frozen=True)
class ServerRound:
    """What a parameter server does in one round: whose pushes it applies, and which partitions fetch its state.

    A partition that pushed and is not among the `fetching` fetches the state of the round before. One whose next
    push begins without a fetch keeps its version. A partition that pushed earlier and has not begun its next push
    may fetch again.

    With a cohort, `partitions` are in the order of their pushes, else ascending. Where this says of a partition
    that pushed what it does next, it is said of the one that was drawn after that push.
    """

    partitions: tuple[int, ...]
    fetching: frozenset[int]


Draw = Callable[[int, Collection[int]], int] | None
"""Draws the partition of a cohort that computes next, from the number of pushes so far and who is in flight.

None: there is no cohort, and the partition that pushed goes on.
"""


Begun = Mapping[int, InFlight]
"""What each partition has in flight, by partition."""


class Order(Protocol):
    """An order in which the pushes of partitions arrive at a parameter server."""

    def rounds(self, when: Asynchronous, first: int, in_flight: Begun, draw: Draw = None) -> Iterator[ServerRound]:
        """Yield the server's rounds from round `first` on; `in_flight` has what each partition has in flight."""


@dataclass
class Ledger:
    """The round of a server that is open: `arrived` are the partitions whose push it has, each at most once.

    Each has the partition that computes after it: itself, or one that takes its place `in_flight`, if they are
    drawn. `following` is that of the last push, and `round` the last round that was closed.

    Without a buffer each push closes a round; with one, the push that fills the buffer does. The partition whose
    push closes a round may fetch the state of this round. Those that pushed earlier in the round do not wait for
    its end: they fetch the state of the round before.
    """

    when: Asynchronous
    round: int = 0
    in_flight: dict[int, InFlight] = field(default_factory=dict)
    draw: Draw = None
    arrived: dict[int, int] = field(default_factory=dict)
    following: int = -1

    def takes(self, partition: int) -> bool:
        """Whether the open round may have a push of this partition; if not, the push waits until it closes."""
        return partition not in self.arrived.values()

    def arrive(self, partition: int) -> ServerRound | None:
        """Add a partition's push to the open round. Returns the round if this closes it, else None."""
        pushes = self.round * self.when.buffer + len(self.arrived) + 1
        self.arrived[partition] = self.following = hand_over(self.in_flight, partition, pushes, self.draw)
        if len(self.arrived) < self.when.buffer:
            return None
        pushed, self.arrived, self.round = self.arrived, {}, self.round + 1
        return ServerRound(tuple(pushed if self.draw else sorted(pushed)), frozenset({self.following}))


def hand_over(in_flight: dict[int, InFlight], partition: int, pushes: int, draw: Draw) -> int:
    """The partition that computes after the push of a partition, with which so many `pushes` have arrived.

    If it is drawn, it takes the place of the other `in_flight`, and its push has the number ``pushes + 1``. So no
    number has to be kept of partitions that sit out, and none has the same number twice.
    """
    if draw is None:
        return partition
    before = in_flight.pop(partition)
    following = draw(pushes, in_flight)
    in_flight[following] = replace(before, push=pushes)
    return following


def next_push(when: Asynchronous, before: InFlight, version: int, steps: int = 0) -> InFlight:
    """What a partition has in flight after a push: from this version if it is time to fetch, else from the last.

    `steps` counts the rounds up to the version that accepted an update.
    """
    if when.fetches(before.push + 1):
        return InFlight(before.push + 1, version, steps)
    return replace(before, push=before.push + 1)


def next_in_flight(
    when: Asynchronous, server: ServerRecord, taken_in: ServerRound, round: int, steps: int, draw: Draw = None
) -> Mapping[int, InFlight]:
    """What is in flight of each partition after `round`, in which the server applied the pushes of `taken_in`.

    `server` is its record before the round. `steps` counts the rounds so far, this one included, that accepted an
    update. The staleness of an update is the difference of two such counts.
    """
    in_flight = dict(server.in_flight)
    for pushes, partition in enumerate(taken_in.partitions, start=(round - 1) * when.buffer + 1):
        following = hand_over(in_flight, partition, pushes, draw)
        in_flight[following] = next_push(when, in_flight[following], round - 1, server.steps)
    for partition in taken_in.fetching:
        if when.fetches(in_flight[partition].push):
            in_flight[partition] = InFlight(in_flight[partition].push, round, steps)
    return in_flight


def recorded_round(before: ServerRecord, commit: Commit) -> ServerRound:
    """Read from a server's commit whose pushes its round applied, and which partitions fetched its state.

    `before` is the server's record in the commit of the round before.
    """
    if commit.server is None:
        raise StoreDamaged(f"round {commit.round} has no record of its server; restore it")
    earlier, in_flight = before.in_flight, commit.server.in_flight
    fetching = {p for p, now in in_flight.items() if now.version == commit.round and earlier.get(p) != now}
    return ServerRound(tuple(commit.updates), frozenset(fetching))


@dataclass(frozen=True)
class Seeded(Order):
    """An order that is simulated: a map takes 1 / speed, times a factor between 0.5 and 1.5 drawn from the seed.

    `speeds` has one number for each partition. Without speeds all partitions are equally fast. Where some are
    drawn, maps begin at equal distances in time, so that the time of a push follows from its number.

    >>> rounds_taken = Seeded(0, speeds=(1.0, 0.1)).rounds(Asynchronous(), 1, {0: InFlight(), 1: InFlight()})
    >>> [next(rounds_taken).partitions[0] for _ in range(12)]
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0]
    """

    seed: int
    speeds: tuple[float, ...] = ()

    def rounds(self, when: Asynchronous, first: int, in_flight: Begun, draw: Draw = None) -> Iterator[ServerRound]:
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

        Where some are drawn, a map begins a `pause` after the one before.
        """
        if pause is not None:
            return (push - 1) * pause + self._seconds(partition, push)
        end = 0.0
        for number in range(1, push + 1):
            end += self._seconds(partition, number)
        return end

    def _pause(self, drawn: int) -> float:
        """The mean time between two pushes if so many `drawn` partitions compute at any time.

        A partition whose map takes d seconds computes for a share d / (d + rest) of the time; all rest equally
        long. The shares add up to their number.
        """
        seconds, rest = [1 / speed for speed in self.speeds] or [1.0] * drawn, 1.0
        for _ in range(100):
            rest *= sum(each / (each + rest) for each in seconds) / drawn
        return 1 / sum(1 / (each + rest) for each in seconds)

    def _seconds(self, partition: int, push: int) -> float:
        speed = self.speeds[partition] if self.speeds else 1.0
        drawn = derive_seed(self.seed, "arrival", push, partition, -1) / 2**63
        return (0.5 + drawn) / speed


@dataclass(frozen=True)
class Recorded(Order):
    """The order in which pushes arrived in the run that is stored at an address."""

    address: str

    def rounds(self, when: Asynchronous, first: int, in_flight: Begun, draw: Draw = None) -> Iterator[ServerRound]:
        """Yield the recorded rounds from `first` on.

        Raises `UsageError` if the run was not asynchronous, or if a round is asked for that it does not have.
        """
        store = RoundStore(self.address)
        before = store.log.read(first - 1).server or ServerRecord(in_flight)
        for round in range(first, (store.newest or 0) + 1):
            commit = store.log.read(round)
            if commit.server is None:
                raise UsageError(f"{self.address} has no order of arrival: its rounds waited for all partitions")
            yield recorded_round(before, commit)
            before = commit.server
        raise UsageError(f"{self.address} has no order beyond round {store.newest}; give fewer --rounds")
