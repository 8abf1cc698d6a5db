"""Which arrivals make which round: whatever the order, everyone lands once a round and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from storage.rounds.commits import Arrival, Commit, Hand, ServerRecord, UpdateRecord
from tasks.arrivals.ledger import Ledger, next_hands, recorded_intake, standing
from tasks.rounds.landing import Intake, Landing
from tasks.when import Asynchronous

Choices = st.lists(st.integers(0, 10**6), max_size=200)


class Partitions:
    """Partitions that push turn after turn: which arrivals may be next, one at each shard in a turn."""

    def __init__(self, ledger: Ledger, partitions: int) -> None:
        self.ledger = ledger
        self.coming = {partition: self._turn() for partition in range(partitions)}
        self.noted: list[list[int]] = [[] for _ in self._turn()]

    def _turn(self) -> list[int]:
        return list(range(self.ledger.when.shards))

    def next(self) -> list[tuple[int, int]]:
        return [(p, shard) for p, shards in self.coming.items() if self.ledger.takes(p) for shard in shards]

    def arrive(self, partition: int, shard: int) -> Intake | None:
        self.coming[partition].remove(shard)
        self.noted[shard].append(partition)
        self.coming[partition] = self.coming[partition] or self._turn()
        return self.ledger.arrive(partition, shard)


@st.composite
def servers(draw: st.DrawFn) -> tuple[Asynchronous, int]:
    partitions = draw(st.integers(1, 6))
    if draw(st.booleans()):
        return Asynchronous(shards=draw(st.integers(2, 4))), partitions
    return Asynchronous(buffer=draw(st.integers(1, partitions))), partitions


@given(servers(), Choices)
def test_a_round_takes_each_partition_once_and_all_shards_take_the_same(server, choices: list[int]) -> None:
    when, partitions = server
    arriving = Partitions(Ledger(when), partitions)
    for choice in choices:
        ready = arriving.next()
        assert ready, "everybody waits"
        partition, shard = ready[choice % len(ready)]
        intake = arriving.arrive(partition, shard)
        if intake is None:
            continue
        assert intake.partitions == sorted(set(intake.partitions))
        assert len(intake.partitions) == when.buffer or when.shards > 1
        assert intake.fetching == {partition}
        for at, noted in enumerate(arriving.noted):
            by_place = sorted(intake.landings, key=lambda landing: landing.places[at])
            assert [landing.partition for landing in by_place] == noted
            assert sorted(landing.places[at] for landing in by_place) == list(range(len(noted)))
        assert all(map(arriving.ledger.takes, range(partitions)))
        arriving.noted = [[] for _ in arriving.noted]


@given(servers(), Choices)
def test_from_wherever_it_stands_a_round_closes_once_each_has_pushed(server, choices: list[int]) -> None:
    when, partitions = server
    arriving = Partitions(Ledger(when), partitions)
    for choice in choices:
        ready = arriving.next()
        arriving.arrive(*ready[choice % len(ready)])
    left = sum(len(shards) for p, shards in arriving.coming.items() if arriving.ledger.takes(p))
    assert any(arriving.arrive(*arriving.next()[0]) for _ in range(left))


def test_two_shards_that_see_two_partitions_the_other_way_round_close_together() -> None:
    ledger = Ledger(Asynchronous(shards=2))
    assert [ledger.arrive(0, 0), ledger.arrive(1, 1), ledger.arrive(1, 0)] == [None, None, None]
    assert (ledger.takes(0), ledger.takes(1)) == (True, False)
    closed = ledger.arrive(0, 1)
    assert closed == Intake((Landing(0, (0, 1)), Landing(1, (1, 0))), frozenset({0}))


def test_a_buffer_closes_when_it_is_full() -> None:
    ledger = Ledger(Asynchronous(buffer=3))
    assert [ledger.arrive(2), ledger.arrive(0)] == [None, None]
    assert [ledger.takes(p) for p in (0, 1, 2)] == [False, True, False]
    assert ledger.arrive(1) == Intake((Landing(0, (1,)), Landing(1, (2,)), Landing(2, (0,))), frozenset({1}))


# What partitions have in hand.


def test_who_closes_a_round_goes_on_from_it_and_who_landed_before_from_the_one_before() -> None:
    """By hand, at round 8 with 5 rounds so far that took an update and this one the sixth."""
    server = ServerRecord({0: Hand(3, 6, 4), 1: Hand(2, 5, 3), 2: Hand(1, 0, 0)}, steps=5)
    intake = Intake((Landing(0), Landing(1)), frozenset({1}))
    hands = next_hands(Asynchronous(buffer=2), server, intake, 8, 6)
    assert hands == {0: Hand(4, 7, 5), 1: Hand(3, 8, 6), 2: Hand(1, 0, 0)}


def test_who_does_not_fetch_keeps_what_it_fetched() -> None:
    """Fetching every second turn: the third turn begins with a fetch, the second and the fourth do not."""
    when = Asynchronous(fetch_every=4, push_every=2)
    server = ServerRecord({0: Hand(1, 0, 0), 1: Hand(2, 3, 2)}, steps=4)
    hands = next_hands(when, server, Intake((Landing(0), Landing(1)), frozenset({0, 1})), 6, 5)
    assert hands == {0: Hand(2, 0, 0), 1: Hand(3, 6, 5)}


def test_who_landed_earlier_and_has_not_begun_may_fetch_again() -> None:
    server = ServerRecord({0: Hand(2, 1, 1), 1: Hand(1, 0, 0)}, steps=1)
    hands = next_hands(Asynchronous(), server, Intake((Landing(1),), frozenset({0, 1})), 2, 2)
    assert hands == {0: Hand(2, 2, 2), 1: Hand(2, 2, 2)}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Asynchronous, int, list[tuple[Intake, bool]]]:
    """Any intakes, also ones that no ledger makes, and whether a server took of them."""
    few = st.integers(1, 3)
    push = draw(few)
    when = Asynchronous(fetch_every=push * draw(few), push_every=push, shards=draw(few))
    partitions = draw(st.integers(1, 4))
    some = st.lists(st.integers(0, partitions - 1), min_size=1, max_size=partitions)
    rounds = []
    for landed in draw(st.lists(some, min_size=1, max_size=12)):
        orders = [draw(st.permutations(sorted(set(landed)))) for _ in range(when.shards)]
        landings = tuple(Landing(p, tuple(order.index(p) for order in orders)) for p in sorted(set(landed)))
        fetching = frozenset(draw(some)) if draw(st.booleans()) else frozenset[int]()
        rounds.append((Intake(landings, fetching), draw(st.booleans())))
    return when, partitions, rounds


@given(histories())
def test_a_record_gives_back_what_was_taken_in(history) -> None:
    """But for those who were to fetch at a turn that begins without: of them there is nothing to tell."""
    when, partitions, rounds = history
    server = standing(None, partitions)
    for round, (intake, took) in enumerate(rounds, start=1):
        steps = server.steps + took
        after = ServerRecord(next_hands(when, server, intake, round, steps), steps)
        updates = {
            each.partition: UpdateRecord("", 1, arrival=Arrival(1, 0, 0, each.places)) for each in intake.landings
        }
        commit = Commit.from_json(Commit(round, "", 0, "", {}, updates, server=after).to_json())
        found = recorded_intake(server, commit)
        fetching = frozenset(p for p in intake.fetching if when.fetches(after.hands[p].turn))
        assert found == replace(intake, fetching=fetching)
        assert next_hands(when, server, found, round, steps) == after.hands
        assert {p: hand.turn for p, hand in after.hands.items()} == {
            p: hand.turn + (p in intake.partitions) for p, hand in server.hands.items()
        }
        server = after
