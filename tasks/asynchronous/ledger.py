"""Which arrivals make which round of a parameter server. It decides by order alone, and does no work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.rounds.commits import Commit, InFlight, ServerRecord
from tasks.when import Asynchronous, ServerRound


@dataclass
class Ledger:
    """The open round of a server: the partitions that have `landed` in it so far, each at most once.

    A round closes with each arrival, or with the one that fills the buffer. Who closes it goes on from the round's
    own state, who landed before from the one before: that partition does not wait.
    """

    when: Asynchronous
    landed: set[int] = field(default_factory=set)

    def takes(self, partition: int) -> bool:
        """Whether an update of the partition may arrive now; else it waits for the round to close."""
        return partition not in self.landed

    def arrive(self, partition: int) -> ServerRound | None:
        """Note an arrival; what the round that it closes takes in, None while it is open."""
        self.landed.add(partition)
        if len(self.landed) < self.when.buffer:
            return None
        landed, self.landed = self.landed, set()
        return ServerRound(tuple(sorted(landed)), frozenset({partition}))


def standing(recorded: ServerRecord | None, partitions: int) -> ServerRecord:
    """Where a server stands, as recorded; before its first round every partition begins with the initial state."""
    return recorded or ServerRecord({partition: InFlight() for partition in range(partitions)})


def next_in_flight(
    when: Asynchronous, server: ServerRecord, taken_in: ServerRound, round: int, steps: int
) -> Mapping[int, InFlight]:
    """What is in flight of each partition after a round with which the server has taken so many steps."""
    in_flight = dict(server.in_flight)
    for partition in taken_in.partitions:
        item = in_flight[partition]
        fetched = when.fetches(item.push + 1)
        row, taken = (round - 1, server.steps) if fetched else (item.version, item.steps)
        in_flight[partition] = InFlight(item.push + 1, row, taken)
    for partition in taken_in.fetching:
        if when.fetches(in_flight[partition].push):
            in_flight[partition] = InFlight(in_flight[partition].push, round, steps)
    return in_flight


def recorded_round(before: ServerRecord, commit: Commit) -> ServerRound:
    """What a recorded round took in, where the server stood so before it."""
    assert commit.server is not None
    in_flight = commit.server.in_flight
    landed = tuple(partition for partition, record in commit.updates.items() if record.arrival is not None)
    fetching = {p for p, item in in_flight.items() if item.version == commit.round and before.in_flight[p] != item}
    return ServerRound(landed, frozenset(fetching))
