"""Simulated rounds are sums that can be done by hand, with what the executors do."""

from __future__ import annotations

from collections import defaultdict

import numpy as np
import pytest

from flows.planning.simulating.rounds import MESSAGE, Setting, book, graph, ranks, server
from tasks.executors.graph import FAN_IN
from tests.flows.planning.simulating.simulated import FREE, setting, work

KINDS = [graph, ranks]


def only(kind, made: Setting) -> dict[str, float]:
    """Where the time of a round went, without what took none."""
    spent: dict[str, float] = defaultdict(float)
    before = 0.0
    for what, until in kind(made, 0):
        assert until >= before
        spent[what] += until - before
        before = until
    return {what: seconds for what, seconds in spent.items() if seconds > 1e-12}


def seconds(kind, made: Setting, round: int = 0) -> float:
    return kind(made, round)[-1][1]


def test_who_comes_first_is_served_first() -> None:
    free = [0.0, 0.0]
    assert [book(free, 0, 3), book(free, 0, 1), book(free, 0, 1), book(free, 5, 1)] == [3, 1, 2, 6]


def test_tasks_on_four_machines() -> None:
    # The state is at machine 0, at 0.1 s at 1, at 0.2 s at 2 and 3; maps take 0.2 s. Machine 0 takes in three
    # updates for 0.3 s and folds them for 0.03 s.
    told = {"state's way": 0.2, "maps": 0.2, "reducer's link": 0.3, "reducer's CPU": 0.03}
    assert only(graph, setting(4)) == pytest.approx(told)


def test_more_tasks_than_one_folds_make_a_tree() -> None:
    # Two nodes of as many updates at once, and one of theirs: the state is there a step later, and one update more
    # comes over a link.
    one = seconds(graph, setting(FAN_IN, work(fold=0)))
    assert seconds(graph, setting(2 * FAN_IN, work(fold=0))) == pytest.approx(one + 0.1 + 0.1)


def test_messages_and_the_scheduler() -> None:
    # Two maps are handed out at 5 and 10 ms, and it is told at 212 ms that both are done; at 217 ms they are taken
    # back. The reduce is handed out at 222 ms, there at 223, done and told at 224, taken back at 229.
    told = only(graph, setting(2, work(task=0.01, fold=0), cores=2, latency=0.001))
    ways = {"state's way": 0.001, "reducer's link": 0.001, "messages": 0.002}
    assert told == pytest.approx({"scheduler": 0.025, "maps": 0.2} | ways)


def test_neighbours_on_a_machine_need_no_link() -> None:
    assert only(graph, setting(4, cores=4)) == pytest.approx({"maps": 0.2, "reducer's CPU": 0.03})
    assert only(ranks, setting(4, cores=4)) == pytest.approx({"maps": 0.2, "messages": 3 * MESSAGE, "fold": 0.03})


def test_ranks_on_four_machines() -> None:
    # Three steps in a ring, for numbers and for updates of 0.1 s.
    told = {"maps": 0.2, "messages": 6 * (MESSAGE + 0.001), "links": 0.3, "fold": 0.03}
    assert only(ranks, setting(4, latency=0.001)) == pytest.approx(told)


def test_ranks_reduce_a_large_state_in_shares() -> None:
    # Of 100 MB each rank is sent three quarters twice, once to fold and once folded, and folds a quarter of three.
    told = {"maps": 0.2, "messages": 2 * 6 * MESSAGE, "links": 2 * 7.5, "fold": 0.75}
    assert only(ranks, setting(4, work(state=100_000_000))) == pytest.approx(told)


def test_a_scheduler_takes_its_time_for_every_map() -> None:
    assert seconds(graph, setting(50, work(task=0.01), **FREE)) >= 51 * 0.01


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_waits_for_the_slowest(kind) -> None:
    made = setting(100, work(fold=0), stragglers=0.05, tail=1.5, **FREE)
    told = only(kind, made)
    assert told["stragglers"] == pytest.approx(0.2 * (max(made.factors(0)) - 1))
    assert told["maps"] == pytest.approx(0.2)


def test_a_server_is_bound_by_who_is_the_busiest() -> None:
    # A worker alone maps for 0.2 s; of 100 each update takes 0.1 s of the link, or 0.03 s to fold and apply.
    assert only(server, setting(1)) == pytest.approx({"maps": 0.2})
    assert only(server, setting(100)) == pytest.approx({"links": 10})
    assert only(server, setting(100, work(round=0.02), cores=100)) == pytest.approx({"server": 3})


def test_a_worker_has_the_same_luck_among_any_number_by_the_seed() -> None:
    few, many, other = (setting(n, seed=seed, stragglers=0.5) for n, seed in ((5, 7), (50, 7), (5, 8)))
    assert many.factors(3)[:5] == few.factors(3) != other.factors(3)


def test_luck_follows_its_laws() -> None:
    factors = np.array(setting(100_000, stragglers=0.2, tail=3).factors(1))
    assert np.mean(factors > 1) == pytest.approx(0.2, abs=0.01)
    assert factors[factors > 1].mean() == pytest.approx(3 / (3 - 1), rel=0.05)  # of a Pareto law from 1 on
