"""Which arrivals make which round: whatever the order, everyone lands once a round and nobody waits for ever."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from roundweave.flows.plugins.parameter_server.orders import (
    Ledger,
    ServerRound,
    next_in_flight,
    recorded_round,
)
from roundweave.storage.rounds.commits import Arrival, Commit, InFlight, ServerRecord, UpdateRecord
from roundweave.tasks.algorithms.when import Asynchronous

Choices = st.lists(st.integers(0, 10**6), max_size=200)


class Partitions:
    """Partitions that push again and again: whose update may arrive next."""

    def __init__(self, buffer: int, partitions: int) -> None:
        self.ledger, self.partitions = Ledger(Asynchronous(buffer=buffer)), range(partitions)

    def arrive(self, choice: int) -> tuple[int, ServerRound | None]:
        ready = [partition for partition in self.partitions if self.ledger.takes(partition)]
        assert ready, "everybody waits"
        partition = ready[choice % len(ready)]
        return partition, self.ledger.arrive(partition)


Servers = st.integers(1, 6).flatmap(lambda n: st.tuples(st.integers(1, n), st.just(n)))
"""A buffer and so many partitions."""


@given(Servers, Choices)
def test_a_round_takes_each_partition_once_and_the_last_goes_on_from_it(server, choices: list[int]) -> None:
    buffer, partitions = server
    arriving, noted = Partitions(buffer, partitions), list[int]()
    for choice in choices:
        partition, taken_in = arriving.arrive(choice)
        noted.append(partition)
        assert (taken_in is not None) == (len(noted) == buffer)
        if taken_in is None:
            continue
        assert taken_in == ServerRound(tuple(sorted(set(noted))), frozenset({partition}))
        assert len(taken_in.partitions) == buffer
        assert all(map(arriving.ledger.takes, range(partitions)))
        noted = []


# What partitions have in item.


def test_who_closes_a_round_goes_on_from_it_and_who_arrived_before_from_the_one_before() -> None:
    """By item, at round 8 with 5 rounds so far that took an update and this one the sixth."""
    server = ServerRecord({0: InFlight(3, 6, 4), 1: InFlight(2, 5, 3), 2: InFlight(1, 0, 0)}, steps=5)
    taken_in = ServerRound((0, 1), frozenset({1}))
    in_flight = next_in_flight(Asynchronous(buffer=2), server, taken_in, 8, 6)
    assert in_flight == {0: InFlight(4, 7, 5), 1: InFlight(3, 8, 6), 2: InFlight(1, 0, 0)}


def test_who_does_not_fetch_keeps_what_it_fetched() -> None:
    """Fetching before every second push: the third begins with a fetch, the second and the fourth do not."""
    when = Asynchronous(fetch_every=4, push_every=2)
    server = ServerRecord({0: InFlight(1, 0, 0), 1: InFlight(2, 3, 2)}, steps=4)
    in_flight = next_in_flight(when, server, ServerRound((0, 1), frozenset({0, 1})), 6, 5)
    assert in_flight == {0: InFlight(2, 0, 0), 1: InFlight(3, 6, 5)}


def test_who_arrived_earlier_and_has_not_begun_may_fetch_again() -> None:
    server = ServerRecord({0: InFlight(2, 1, 1), 1: InFlight(1, 0, 0)}, steps=1)
    in_flight = next_in_flight(Asynchronous(), server, ServerRound((1,), frozenset({0, 1})), 2, 2)
    assert in_flight == {0: InFlight(2, 2, 2), 1: InFlight(2, 2, 2)}


@st.composite
def histories(draw: st.DrawFn) -> tuple[Asynchronous, int, list[tuple[ServerRound, bool]]]:
    """Any rounds_taken, also ones that no ledger makes, and whether a server took of them."""
    few = st.integers(1, 3)
    push = draw(few)
    when = Asynchronous(fetch_every=push * draw(few), push_every=push)
    partitions = draw(st.integers(1, 4))
    some = st.lists(st.integers(0, partitions - 1), min_size=1, max_size=partitions)
    rounds = []
    for arrived in draw(st.lists(some, min_size=1, max_size=12)):
        fetching = frozenset(draw(some)) if draw(st.booleans()) else frozenset[int]()
        rounds.append((ServerRound(tuple(sorted(set(arrived))), fetching), draw(st.booleans())))
    return when, partitions, rounds


@given(histories())
def test_a_record_gives_back_what_was_taken_in(history) -> None:
    """But for those who were to fetch before a push that begins without: of them there is nothing to tell."""
    when, partitions, rounds = history
    server = ServerRecord(dict.fromkeys(range(partitions), InFlight()))
    for round, (taken_in, took) in enumerate(rounds, start=1):
        steps = server.steps + took
        after = ServerRecord(next_in_flight(when, server, taken_in, round, steps), steps)
        updates = {partition: UpdateRecord("", 1, arrival=Arrival(1, 0, 0)) for partition in taken_in.partitions}
        commit = Commit.from_json(Commit(round, "", 0, "", {}, updates, server=after).to_json())
        found = recorded_round(server, commit)
        fetching = frozenset(p for p in taken_in.fetching if when.fetches(after.in_flight[p].push))
        assert found == replace(taken_in, fetching=fetching)
        assert next_in_flight(when, server, found, round, steps) == after.in_flight
        assert {p: item.push for p, item in after.in_flight.items()} == {
            p: item.push + (p in taken_in.partitions) for p, item in server.in_flight.items()
        }
        server = after
