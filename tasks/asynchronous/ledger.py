"""Which pushes make up which round of a parameter server.

The functions here look at the order of arrival alone. They compute no update and no state.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from storage.rounds.commits import Commit, InFlight, ServerRecord
from tasks.when import Asynchronous, ServerRound


@dataclass
class Ledger:
    """The round of a server that is open: `landed` are the partitions whose push it has, each at most once.

    Without a buffer each push closes a round; with one, the push that fills the buffer does. The partition whose
    push closes a round may fetch the state of this round. Those that pushed earlier in the round do not wait for
    its end: they fetch the state of the round before.
    """

    when: Asynchronous
    landed: set[int] = field(default_factory=set)

    def takes(self, partition: int) -> bool:
        """Whether the open round may have a push of this partition; if not, the push waits until it closes."""
        return partition not in self.landed

    def arrive(self, partition: int) -> ServerRound | None:
        """Add a partition's push to the open round. Returns the round if this closes it, else None."""
        self.landed.add(partition)
        if len(self.landed) < self.when.buffer:
            return None
        pushed, self.landed = self.landed, set()
        return ServerRound(tuple(sorted(pushed)), frozenset({partition}))


def standing(recorded: ServerRecord | None, partitions: int) -> ServerRecord:
    """The server's record in a commit; where there is none, all `partitions` are in flight from the initial state.

    `recorded` is None before the first round.
    """
    return recorded or ServerRecord({partition: InFlight() for partition in range(partitions)})


def next_push(when: Asynchronous, before: InFlight, version: int, steps: int = 0) -> InFlight:
    """What a partition has in flight after a push: from this version if it is time to fetch, else from the last.

    `steps` counts the rounds up to the version that accepted an update.
    """
    if when.fetches(before.push + 1):
        return InFlight(before.push + 1, version, steps)
    return replace(before, push=before.push + 1)


def next_in_flight(
    when: Asynchronous, server: ServerRecord, taken_in: ServerRound, round: int, steps: int
) -> Mapping[int, InFlight]:
    """What is in flight of each partition after `round`, in which the server applied the pushes of `taken_in`.

    `server` is its record before the round. `steps` counts the rounds so far, this one included, that accepted an
    update. The staleness of an update is the difference of two such counts.
    """
    in_flight = dict(server.in_flight)
    for partition in taken_in.partitions:
        in_flight[partition] = next_push(when, in_flight[partition], round - 1, server.steps)
    for partition in taken_in.fetching:
        if when.fetches(in_flight[partition].push):
            in_flight[partition] = InFlight(in_flight[partition].push, round, steps)
    return in_flight


def recorded_round(before: ServerRecord, commit: Commit) -> ServerRound:
    """Read from a server's commit whose pushes its round applied, and which partitions fetched its state.

    `before` is the server's record in the commit of the round before.
    """
    assert commit.server is not None
    in_flight = commit.server.in_flight
    pushed = tuple(partition for partition, record in commit.updates.items() if record.arrival is not None)
    fetching = {p for p, now in in_flight.items() if now.version == commit.round and before.in_flight[p] != now}
    return ServerRound(pushed, frozenset(fetching))
