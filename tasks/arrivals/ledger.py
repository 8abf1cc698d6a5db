"""Which arrivals make which round of a parameter server. It decides by order alone, and does no work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.rounds.commits import Commit, Hand, ServerRecord
from tasks.rounds.landing import Intake
from tasks.when import Asynchronous


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

    def arrive(self, partition: int) -> Intake | None:
        """Note an arrival; what the round that it closes takes in, None while it is open."""
        self.landed.add(partition)
        if len(self.landed) < self.when.buffer:
            return None
        landed, self.landed = self.landed, set()
        return Intake(tuple(sorted(landed)), frozenset({partition}))


def standing(recorded: ServerRecord | None, partitions: int) -> ServerRecord:
    """Where a server stands, as recorded; before its first round every partition begins with the initial state."""
    return recorded or ServerRecord({partition: Hand() for partition in range(partitions)})


def next_hands(
    when: Asynchronous, server: ServerRecord, intake: Intake, round: int, steps: int
) -> Mapping[int, Hand]:
    """What partitions have in hand after a round with which the server has taken so many steps."""
    hands = dict(server.hands)
    for partition in intake.partitions:
        hand = hands[partition]
        fetched = when.fetches(hand.turn + 1)
        row, taken = (round - 1, server.steps) if fetched else (hand.row, hand.steps)
        hands[partition] = Hand(hand.turn + 1, row, taken)
    for partition in intake.fetching:
        if when.fetches(hands[partition].turn):
            hands[partition] = Hand(hands[partition].turn, round, steps)
    return hands


def recorded_intake(before: ServerRecord, commit: Commit) -> Intake:
    """What a recorded round took in, where the server stood so before it."""
    assert commit.server is not None
    hands = commit.server.hands
    landed = tuple(partition for partition, record in commit.updates.items() if record.arrival is not None)
    fetching = {p for p, hand in hands.items() if hand.row == commit.round and before.hands[p] != hand}
    return Intake(landed, frozenset(fetching))
