"""Which arrivals make which round of a parameter server. It decides by order alone, and does no work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from storage.rounds.commits import Commit, Hand, ServerRecord
from tasks.rounds.landing import Intake, Landing
from tasks.when import Asynchronous


@dataclass
class Ledger:
    """The open round of a server: what arrived at each shard so far, and who has `landed` at all of them.

    A round closes with the arrival after which every shard has the same updates (with a buffer: so many), each
    at most once for a partition. Who closes it goes on from the round's own state, who landed before from the one
    before: that partition does not wait.
    """

    when: Asynchronous
    landed: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self._orders: list[list[int]] = [[] for _ in range(self.when.shards)]

    def takes(self, partition: int) -> bool:
        """Whether an update of the partition may arrive now; else it waits for the round to close."""
        return partition not in self.landed

    def arrive(self, partition: int, shard: int = 0) -> Intake | None:
        """Note an arrival; what the round that it closes takes in, None while it is open."""
        orders = self._orders
        orders[shard].append(partition)
        if not all(partition in order for order in orders):
            return None
        self.landed.add(partition)
        if len(self.landed) < self.when.buffer or any(set(order) != self.landed for order in orders):
            return None
        landings = tuple(Landing(p, tuple(order.index(p) for order in orders)) for p in sorted(self.landed))
        self.landed = set()
        self._orders = [[] for _ in orders]
        return Intake(landings, frozenset({partition}))


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
    landings = tuple(
        Landing(partition, record.arrival.places)
        for partition, record in commit.updates.items()
        if record.arrival is not None
    )
    fetching = {p for p, hand in hands.items() if hand.row == commit.round and before.hands[p] != hand}
    return Intake(landings, frozenset(fetching))
