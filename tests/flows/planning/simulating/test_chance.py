"""Stragglers and failures: what they do to rounds, and what helps."""

from __future__ import annotations

import numpy as np
import pytest

from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.runs.draws import Draws
from flows.planning.simulating.runs.gang import Gang
from flows.planning.simulating.runs.graph import Graph
from flows.planning.simulating.runs.parts import FAILURES, STRAGGLERS
from flows.planning.simulating.runs.server import Server
from tests.flows.planning.simulating.simulated import FREE, setting, work

TAIL = {"stragglers": 0.05, "tail": 1.5, **FREE}
ALL = [Graph, Gang, Server]


def test_a_worker_has_the_same_luck_among_any_number() -> None:
    cluster = SimulatedCluster(stragglers=0.5, failures=10)
    few, many = Draws(cluster, 5, 7), Draws(cluster, 50, 7)
    assert many.factors(3)[:5] == few.factors(3)
    assert many.lives(3, 1)[:5] == few.lives(3, 1)
    assert len({*few.lives(3), *few.lives(4), *few.lives(3, 1), *Draws(cluster, 5, 8).lives(3)}) == 20


def test_luck_follows_its_laws() -> None:
    draws = Draws(SimulatedCluster(stragglers=0.2, tail=3, failures=50), 100_000, 0)
    factors = np.array(draws.factors(1))
    assert np.mean(factors > 1) == pytest.approx(0.2, abs=0.01)
    assert factors[factors > 1].mean() == pytest.approx(3 / (3 - 1), rel=0.05)  # of a Pareto law from 1 on
    assert np.mean(draws.lives(1)) == pytest.approx(50, rel=0.03)


@pytest.mark.parametrize("kind", ALL)
def test_a_seed_decides_all(kind) -> None:
    def seconds(seed: int) -> list[float]:
        return kind(setting(20, seed=seed, failures=20, **TAIL)).run(8).seconds

    assert seconds(1) == seconds(1) != seconds(2)


@pytest.mark.parametrize("kind", [Graph, Gang])
def test_a_round_waits_for_the_slowest(kind) -> None:
    made = setting(100, work(fold=0), **TAIL)
    outcome = kind(made).run(10)
    slowest = [max(Draws(made.cluster, 100, 0).factors(round)) for round in range(10)]
    assert outcome.seconds == pytest.approx([0.25 * factor for factor in slowest])
    assert outcome.spent[STRAGGLERS] == pytest.approx(0.25 * sum(factor - 1 for factor in slowest))


@pytest.mark.parametrize("kind", [Graph, Gang])
@pytest.mark.parametrize("helped", [{}, {"wait_for": 0.9}, {"backups": 0.2}, {"fan_in": 3, "reducers": 2}])
def test_where_the_time_went_is_all_of_it(kind, helped: dict) -> None:
    costs = work(task=0.002, round=0.01, message=0.001, write=1e8)
    cluster = {"latency": 0.001, "store": 1e8, "stragglers": 0.2, "failures": 8, "detection": 2, **helped}
    outcome = kind(setting(12, costs, **cluster)).run(15)
    assert sum(outcome.spent.values()) == pytest.approx(sum(outcome.seconds))
    assert min(outcome.spent.values()) >= -1e-9
    assert outcome.spent[FAILURES] > 0 or "wait_for" in helped  # and so not waited for


@pytest.mark.parametrize("kind", [Graph, Gang])
def test_a_failure_costs_its_detection_and_loses_no_round(kind) -> None:
    costs, failing = work(fold=0), {"failures": 50, "detection": 3, "restart": 2}
    made = setting(20, costs, **FREE, **failing)
    outcome = kind(made).run(40)
    failed = [min(Draws(made.cluster, 20, 0).lives(round)) < 0.25 for round in range(40)]
    assert len(outcome.seconds) == 40
    assert 0 < sum(failed) < 40
    for seconds, lost in zip(outcome.seconds, failed, strict=True):
        assert seconds >= 0.25 + 5 if lost else seconds == pytest.approx(0.25)
    assert outcome.spent[FAILURES] > 5 * sum(failed)


def test_a_server_waits_for_no_worker_that_failed() -> None:
    failing = setting(20, failures=50, detection=3, restart=2, **FREE)
    outcome = Server(failing).run(40)
    assert len(outcome.seconds) == 40
    assert outcome.seconds != Server(setting(20, **FREE)).run(40).seconds
    assert max(outcome.seconds) < 3  # 19 others go on


@pytest.mark.parametrize("kind", ALL)
def test_rounds_that_fail_again_and_again_never_end(kind) -> None:
    outcome = kind(setting(4, failures=0.001, **FREE)).run(3)
    assert outcome.endless
    assert outcome.seconds == []


def tail(**changes: object) -> float:
    """The 90th percentile of rounds with stragglers."""
    return float(np.quantile(Graph(setting(100, work(fold=0), **TAIL, **changes)).run(40).seconds, 0.9))


def test_who_does_not_wait_for_all_has_no_tail() -> None:
    # Who is late is still at it when the next round begins, and its machine has another core for the next map.
    machines = {"machines": 50, "cores": 4}
    assert tail(**machines) > 10 * 0.25
    assert tail(wait_for=0.9, **machines) == pytest.approx(0.25)
    assert 0.25 < tail(wait_for=0.99, **machines) < tail(**machines)


def test_backups_cut_the_tail() -> None:
    # Copies begin once 90 % are done, at 0.25 s, and are done at 0.5 s, unless they are slow as well.
    assert tail(backups=0.1) < 0.7 * tail()
    assert tail(backups=0.1) >= 0.25


def test_a_copy_counts_once() -> None:
    outcome = Graph(setting(4, work(fold=0), backups=0.5, **FREE)).run(3)
    assert outcome.seconds == pytest.approx([0.25] * 3)
