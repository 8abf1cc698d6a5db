"""Which pushes make up which round of a parameter server.

The functions here look at the order of arrival alone. They compute no update and no state.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from roundweave.storage.rounds.commits import Commit, InFlight, ServerRecord
from roundweave.tasks.algorithms.when import Asynchronous, Draw, ServerRound


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


def standing(recorded: ServerRecord | None, partitions: Iterable[int]) -> ServerRecord:
    """The server's record in a commit; where there is none, `partitions` are in flight from the initial state.

    `recorded` is None before the first round.
    """
    return recorded or ServerRecord({partition: InFlight() for partition in partitions})


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
    assert commit.server is not None
    earlier, in_flight = before.in_flight, commit.server.in_flight
    fetching = {p for p, now in in_flight.items() if now.version == commit.round and earlier.get(p) != now}
    return ServerRound(tuple(commit.updates), frozenset(fetching))
