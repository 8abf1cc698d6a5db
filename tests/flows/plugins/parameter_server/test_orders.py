"""Orders of arrival: what comes next depends on what partitions have in item, and on nothing before."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from itertools import islice

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave.flows.plugins.cohort.sampler import Cohort
from roundweave.flows.plugins.parameter_server.orders import Recorded, Seeded, ServerRound, next_in_flight
from roundweave.storage.errors import UsageError
from roundweave.storage.rounds.commits import InFlight, ServerRecord
from roundweave.tasks.algorithms.when import Asynchronous
from tests.rows import but_first

Followed = tuple[list[ServerRound], list[Mapping[int, InFlight]]]


def follow(order: Seeded, when: Asynchronous, partitions: int, rounds: int) -> Followed:
    """The first rounds_taken, and what partitions have in hand before each."""
    server = ServerRecord(dict.fromkeys(range(partitions), InFlight()))
    rounds_taken, in_flight = [], []
    for round, taken_in in enumerate(islice(order.rounds(when, 1, server.in_flight), rounds), start=1):
        rounds_taken.append(taken_in)
        in_flight.append(server.in_flight)
        server = ServerRecord(next_in_flight(when, server, taken_in, round, round), round)
    return rounds_taken, in_flight


@pytest.mark.parametrize("partitions", [1, 3, 5])
@pytest.mark.parametrize("speeds", [(), (1.0, 0.1, 3.0, 0.5, 1.0)])
def test_a_run_that_goes_on_from_any_round_goes_on_in_the_same_order(partitions, speeds) -> None:
    for buffer in range(1, partitions + 1):
        when = Asynchronous(buffer=buffer)
        order = Seeded(7, speeds[:partitions])
        rounds_taken, in_flight = follow(order, when, partitions, 40)
        for round in range(40):
            again = order.rounds(when, round + 1, in_flight[round])
            assert list(islice(again, 40 - round)) == rounds_taken[round:]


@settings(max_examples=20, deadline=None)
@given(seed=st.integers(0, 2**31), speeds=st.lists(st.floats(0.2, 5.0), min_size=1, max_size=5))
def test_partitions_take_shares_of_their_speeds(seed: int, speeds: list[float]) -> None:
    """A push takes 1 / speed on the mean, and never more than 1.5 times that nor less than half of it."""
    in_flight = dict.fromkeys(range(len(speeds)), InFlight())
    rounds_taken = Seeded(seed, tuple(speeds)).rounds(Asynchronous(), 1, in_flight)
    arrived = Counter(taken_in.partitions[0] for taken_in in islice(rounds_taken, 600))
    for partition, speed in enumerate(speeds):
        share = 600 * speed / sum(speeds)
        assert 0.75 * share - 2 <= arrived[partition] <= 1.35 * share + 2


def test_seeds_have_orders_of_their_own() -> None:
    orders = [[i.partitions[0] for i in follow(Seeded(seed), Asynchronous(), 4, 30)[0]] for seed in range(5)]
    assert len({tuple(order) for order in orders}) == 5


@pytest.mark.parametrize(
    "options", [{"algorithm": "async_sgd"}, {"algorithm": "fed_buff", "buffer": 2, "local_steps": 1}]
)
def test_a_recorded_order_is_the_one_that_was_recorded(train, options) -> None:
    fields = {"model": "logistic", "partitions": 3, "rounds": 8}
    run = train(**fields, **options, speeds=(1, 1, 0.3), name="run")
    when = Asynchronous(buffer=options.get("buffer", 1))
    wanted, in_flight = follow(Seeded(0, (1, 1, 0.3)), when, 3, 8)
    assert list(islice(Recorded(run.address).rounds(when, 1, in_flight[0]), 8)) == wanted
    assert list(islice(Recorded(run.address).rounds(when, 4, in_flight[3]), 5)) == wanted[3:]


def test_a_recorded_order_ends_where_its_run_does(train) -> None:
    fields = {"model": "logistic", "partitions": 2, "rounds": 3}
    run = train(algorithm="async_sgd", **fields)
    recorded = Recorded(run.address).rounds(Asynchronous(), 1, dict.fromkeys(range(2), InFlight()))
    assert len(list(islice(recorded, 3))) == 3
    with pytest.raises(UsageError, match=r"has no order beyond round 3; give fewer --rounds"):
        next(recorded)
    waited = train(algorithm="sync_sgd", **fields)
    with pytest.raises(UsageError, match="has no order of arrival: its rounds waited for all partitions"):
        next(Recorded(waited.address).rounds(Asynchronous(), 1, dict.fromkeys(range(2), InFlight())))


def shares(seed: int, cohort: int, partitions: int, speeds, buffer: int, rounds: int) -> Counter[int]:
    """How often each partition pushed, while never more than the cohort computed, nor anybody twice."""

    def draw(pushes: int, busy) -> int:
        return Cohort(cohort).draw_next(seed, pushes, range(partitions), busy)

    when = Asynchronous(buffer=buffer)
    server = ServerRecord(dict.fromkeys(Cohort(cohort).draw(seed, 0, range(partitions)), InFlight()))
    taken = islice(Seeded(seed, speeds).rounds(when, 1, server.in_flight, draw), rounds)
    counts = Counter[int]()
    for round, taken_in in enumerate(taken, start=1):
        assert len({*taken_in.partitions}) == buffer
        assert {*taken_in.partitions} <= server.in_flight.keys()
        counts.update(taken_in.partitions)
        server = ServerRecord(next_in_flight(when, server, taken_in, round, round, draw), round)
        assert len(server.in_flight) == cohort
    return counts


@settings(max_examples=30, deadline=None)
@given(seed=st.integers(0, 2**31), partitions=st.integers(2, 12), data=st.data())
def test_no_more_than_a_cohort_computes_whatever_the_speeds(seed: int, partitions: int, data) -> None:
    cohort = data.draw(st.integers(1, partitions - 1))
    speeds = tuple(data.draw(st.lists(st.floats(0.2, 5.0), min_size=partitions, max_size=partitions)))
    shares(seed, cohort, partitions, speeds, data.draw(st.integers(1, cohort)), 60)


@pytest.mark.parametrize(("cohort", "buffer"), but_first([(4, 3)], [(1, 1), (4, 1), (9, 2)]))
def test_partitions_of_a_cohort_have_equal_shares(cohort: int, buffer: int) -> None:
    counts = shares(3, cohort, 10, (), buffer, 5000 // buffer)
    assert min(counts[p] for p in range(10)) > 440
    assert max(counts.values()) < 560


def test_a_slow_partition_of_a_cohort_takes_as_long_as_its_speed_says() -> None:
    """With d = 1, 1, 1, 10 and 3 of 4 at work all rest for 0.47: 3 push at 1 / 1.47, and one at 1 / 10.47."""
    counts = shares(0, 3, 4, (1, 1, 1, 0.1), 1, 4000)
    assert [round(counts[p] / 4000, 1) for p in range(3)] == [0.3, 0.3, 0.3]
    share = (1 / 10.47) / (3 / 1.47 + 1 / 10.47)
    assert counts[3] / 4000 == pytest.approx(share, rel=0.15)
