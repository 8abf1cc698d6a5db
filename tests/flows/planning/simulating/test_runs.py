"""Simulated rounds are sums that can be done by hand."""

from __future__ import annotations

import pytest

from flows.planning.simulating.runs.gang import Gang
from flows.planning.simulating.runs.graph import Graph
from flows.planning.simulating.runs.parts import (
    APPLY,
    COMMIT,
    FOLD,
    LINK,
    LINKS,
    MAPS,
    MESSAGES,
    REDUCE,
    SCHEDULER,
    STATE,
    STORE,
    Gate,
    Line,
    spent,
)
from flows.planning.simulating.runs.server import UNKEPT, Server
from tests.flows.planning.simulating.simulated import FREE, setting, work


def only(outcome) -> dict[str, float]:
    """Where the time of a round went, without what took none."""
    rounds = len(outcome.seconds)
    return {what: seconds / rounds for what, seconds in outcome.spent.items() if seconds > 1e-12}


def test_who_comes_first_is_served_first() -> None:
    line = Line(2)
    assert [line.book(0, 3), line.book(0, 1), line.book(0, 1), line.book(5, 1)] == [3, 1, 2, 6]
    assert line.busy == 6


def test_time_is_told_apart_by_what_it_went_for() -> None:
    assert spent(1, ((MAPS, 3), (LINK, 3.5), (MAPS, 4))) == {MAPS: 2.5, LINK: 0.5}


def test_tasks_on_four_machines() -> None:
    # The state is at machine 0, at 0.1 s at 1, at 0.2 s at 2 and 3; maps take 0.25 s. Machine 0 takes in three
    # updates for 0.3 s and folds them for 0.03 s, and 0.02 s later the next maps begin.
    outcome = Graph(setting(4, work(round=0.02))).run(3)
    assert outcome.seconds == pytest.approx([0.8] * 3)
    assert only(outcome) == pytest.approx({STATE: 0.2, MAPS: 0.25, LINK: 0.3, REDUCE: 0.03, APPLY: 0.02})


def test_a_tree_of_tasks() -> None:
    # Two nodes of two updates each at once, and one of theirs: two times 0.1 s on links, and 0.01 s to fold.
    outcome = Graph(setting(4, fan_in=2)).run(3)
    assert outcome.seconds == pytest.approx([0.2 + 0.25 + 2 * 0.11] * 3)


def test_reducers_have_a_part_each() -> None:
    # Four links take in a quarter of three updates each. The state comes in four parts, and to all at once.
    outcome = Graph(setting(4, reducers=4)).run(3)
    assert outcome.seconds == pytest.approx([0.1 + 0.25 + 0.075 + 0.0075] * 3)


def test_messages_and_the_scheduler() -> None:
    # Two maps are handed out at 5 and 10 ms, and it is told at 257 and 262 ms that they are done; at 267 ms both
    # are taken back. The reduce is handed out at 272 ms, there at 273, done and told at 274, taken back at 279.
    outcome = Graph(setting(2, work(task=0.01, fold=0), cores=2, latency=0.001)).run(1)
    assert outcome.seconds == pytest.approx([0.279])
    assert only(outcome) == pytest.approx({SCHEDULER: 0.025, MAPS: 0.25, MESSAGES: 0.004})


def test_neighbours_on_a_machine_need_no_link() -> None:
    outcome = Graph(setting(4, cores=4)).run(2)
    assert outcome.seconds == pytest.approx([0.25 + 0.03] * 2)


def test_partitions_of_a_task_are_folded_where_they_are() -> None:
    outcome = Graph(setting(4, partitions_per_task=3)).run(2)
    assert outcome.seconds == pytest.approx([0.2 + 3 * 0.25 + 0.02 + 0.3 + 0.03] * 2)


def test_ranks_on_four_machines() -> None:
    # Three steps in a ring, for numbers and for updates: a message of 3 ms each, and 0.1 s for an update.
    costs = work(round=0.02, message=0.002)
    outcome = Gang(setting(4, costs, latency=0.001)).run(2)
    assert outcome.seconds == pytest.approx([0.25 + 6 * 0.003 + 0.3 + 0.03 + 0.02] * 2)
    assert only(outcome) == pytest.approx({MAPS: 0.25, MESSAGES: 0.018, LINKS: 0.3, FOLD: 0.03, APPLY: 0.02})


def test_ranks_that_reduce_a_part_each() -> None:
    # As a ring does it: each rank is sent three quarters twice, once to fold and once folded, and folds a quarter.
    costs = work(message=0.002)
    outcome = Gang(setting(4, costs, latency=0.001, reducers=4)).run(2)
    assert outcome.seconds == pytest.approx([0.25 + 2 * 6 * 0.003 + 2 * 0.075 + 0.0075] * 2)


def test_groups_of_ranks() -> None:
    costs = work(message=0.002)
    outcome = Gang(setting(4, costs, latency=0.001, fan_in=2)).run(2)
    assert outcome.seconds == pytest.approx([0.25 + 2 * (2 * 0.003 + 0.1 + 0.01)] * 2)


def test_ranks_of_a_machine_share_memory_and_its_link() -> None:
    # First the two of a machine: one message. Then each with one of the other: two updates on the same link.
    costs = work(message=0.002)
    outcome = Gang(setting(4, costs, cores=2, latency=0.001, fan_in=2)).run(2)
    assert outcome.seconds == pytest.approx([0.25 + 0.002 + 0.01 + 2 * 0.003 + 0.2 + 0.01] * 2)


@pytest.mark.parametrize("workers", [1, 2, 3, 5, 9, 10, 28])
@pytest.mark.parametrize("fan_in", [None, 2, 3])
def test_all_ranks_have_all_updates_whatever_their_number(workers: int, fan_in: int | None) -> None:
    from flows.planning.simulating.runs.gang import levels

    known = [{rank} for rank in range(workers)]
    for level in levels(setting(workers, fan_in=fan_in)):
        for group in level.groups():
            told = set().union(*(known[rank] for rank in group))
            for rank in group:
                known[rank] = told
    assert known == [set(range(workers))] * workers


@pytest.mark.parametrize("kind", [Graph, Gang])
def test_workers_beyond_the_cores_of_their_machine_share_them(kind) -> None:
    costs = work(fold=0)
    crowded, free = (kind(setting(n, costs, machines=1, cores=2)).run(2).seconds for n in (8, 2))
    assert crowded == pytest.approx([4 * 0.25] * 2)
    assert free == pytest.approx([0.25] * 2)


def test_a_scheduler_takes_its_time_for_every_map() -> None:
    outcome = Graph(setting(50, work(task=0.01), **FREE)).run(2)
    assert min(outcome.seconds) >= 51 * 0.01


@pytest.mark.parametrize("kind", [Graph, Gang])
def test_computing_alone_takes_what_it_takes(kind) -> None:
    assert kind(setting(16, work(fold=0), **FREE)).run(3).seconds == pytest.approx([0.25] * 3)


@pytest.mark.parametrize("kind", [Graph, Gang])
def test_a_commit_goes_on_beside_maps_and_is_waited_for_when_it_takes_longer(kind) -> None:
    # A map writes its update for 1 s; a state, too, is written in 1 s, beside the maps after it.
    quick = kind(setting(1, work(fold=0, write=1e6))).run(4)
    assert quick.seconds == pytest.approx([1.25] * 4)
    assert COMMIT not in only(quick)
    # A store which takes as many for all: an update and a state need 2 s of it, more than a round.
    slow = kind(setting(1, work(fold=0), store=1e6)).run(5)
    assert slow.seconds[1:] == pytest.approx([2] * 4, abs=0.3)
    assert sum(slow.seconds) == pytest.approx(1.25 + 4 * 2, abs=0.3)


def test_a_store_takes_one_after_the_other() -> None:
    outcome = Graph(setting(4, work(fold=0), store=1e7, **{"bandwidth": float("inf")})).run(1)
    assert only(outcome) == pytest.approx({MAPS: 0.25, STORE: 0.4})


def test_a_server_takes_one_update_at_a_time() -> None:
    # A turn alone: a map, and an update that is folded into the state for 0.01 s.
    alone = Server(setting(1)).run(4)
    assert alone.seconds == pytest.approx([0.26] * 4)
    # Of 100 it is bound: by its link an update each 0.1 s, or, all on its machine, folds of 0.01 s. The one worker
    # which has no link before it goes on as if alone.
    many = Server(setting(100)).run(4)
    assert many.seconds[1:] == pytest.approx([100 / (1 / 0.1 + 1 / 0.26)] * 3, rel=0.02)
    assert many.spent.most_common(1)[0][0] in (LINK, STATE)
    folding = Server(setting(100, **FREE)).run(4)
    assert folding.seconds[1:] == pytest.approx([100 * 0.01] * 3)
    assert folding.spent.most_common(1)[0][0] == REDUCE


def test_a_server_gets_so_far_ahead_of_its_commits_and_no_further() -> None:
    # A commit folds for 0.01 s and writes for 1 s.
    outcome = Server(setting(1, work(write=1e6))).run(3 * UNKEPT)
    assert outcome.seconds[:UNKEPT] == pytest.approx([0.26] * UNKEPT)
    assert outcome.seconds[-UNKEPT:] == pytest.approx([1.01] * UNKEPT)
    assert outcome.spent.most_common(1)[0][0] == COMMIT


def test_a_gate_opens_once() -> None:
    import simpy

    gate = Gate(simpy.Environment(), 2)
    for machine in (3, 1, 2):
        gate.arrive(machine, ((MAPS, float(machine)),))
    gate.open(())
    assert (gate.came, gate.value) == ([3, 1], ((MAPS, 1.0),))
