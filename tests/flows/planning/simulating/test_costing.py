"""Costs that are found from rounds give these rounds when they are simulated."""

from __future__ import annotations

from dataclasses import replace

import pytest

from flows.planning.calibrating import Calibration, Size
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costing import MESSAGE, costs_by_kind, sizes
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.schedules import Schedule
from flows.planning.trying import Tried
from flows.planning.workload import Workload
from tasks.planning.measuring import Pace

WORK = Workload(6400, 32, state=1_000_000, data=20_000_000, epochs=1, scored=2, local="fed_avg")
COSTS = Costs(6400, 32, 1_000_000, step=0.004, fold=1e-9, task=0.001, message=MESSAGE, write=5e8)


def calibration(workers: int, cores: int, machines: int = 1, arrival: float = 0.05) -> Calibration:
    """Of `COSTS`, as they are seen by workers of which several share a core."""
    crowd = max(1.0, workers / (machines * cores))
    pace = Pace(COSTS.step * crowd, 0.1, 0.1, COSTS.fold * crowd, crowd / COSTS.write, 1, 1, cores)
    served = Tried(arrival, arrival, arrival)
    return Calibration(workers, machines, {1: pace}, pace, 0.001, 0.003, {"asynchronous": served}, {})


def seconds(costs: Costs, kind: str, workers: int, cores: int, steps: int = 1) -> float:
    here = SimulatedCluster(machines=1, cores=cores, bandwidth=1e15, latency=0)
    schedule = Schedule(kind, kind, steps)
    return schedule.run(schedule.setting(costs, here, workers, 0), 3).seconds[-1]


def trials(costs: Costs, kind: str, wanted: list[Size], cores: int) -> dict[Size, Tried]:
    taken = {(count, steps): seconds(costs, kind, count, cores, steps) for count, steps in wanted}
    return {size: Tried(each, each, each) for size, each in taken.items()}


@pytest.mark.parametrize("kind", ["graph", "gang"])
def test_what_a_round_takes_is_told_from_what_a_map_takes(kind: str) -> None:
    # The round is long enough for the commit to be done beside it; else it is the longer of the two.
    true = replace(COSTS, round=0.03, start=0.007)
    tried = {kind: trials(true, kind, sizes(kind, 4), cores=2)}
    found = costs_by_kind(WORK, calibration(4, cores=2), tried)[kind]
    assert (found.round, found.start) == pytest.approx((0.03, 0.007), rel=0.05)
    assert found.step == pytest.approx(COSTS.step)  # a step took twice as long, of two workers on a core
    assert seconds(found, kind, 8, 2) == pytest.approx(seconds(true, kind, 8, 2), rel=0.01)
    for workers, steps in sizes(kind, 4):
        tried_again = seconds(found, kind, workers, 2, steps)
        assert tried_again == pytest.approx(seconds(true, kind, workers, 2, steps), rel=0.01)


def test_where_each_has_a_core_maps_are_not_told_from_rounds() -> None:
    true = replace(COSTS, round=0.03)
    tried = {"graph": trials(true, "graph", sizes("graph", 4), cores=4)}
    found = costs_by_kind(WORK, calibration(4, cores=4), tried)["graph"]
    assert found.round + found.start == pytest.approx(0.03, rel=0.05)


def test_rounds_never_take_less_than_nothing() -> None:
    least = Tried(1e-6, 1e-6, 1e-6)
    found = costs_by_kind(WORK, calibration(2, cores=2), {"graph": {(1, 1): least, (2, 1): least}})["graph"]
    assert (found.round, found.start, found.task) == pytest.approx((0, 0, 0.001), abs=1e-6)


def test_costs_that_no_round_tells_of_stay_bounded() -> None:
    # Rounds that take less on more partitions are noise; no cost may be more than the longest took.
    noise = {(1, 1): 0.009, (2, 1): 0.005, (2, 10): 0.004}
    tried = {size: Tried(taken, taken, taken) for size, taken in noise.items()}
    found = costs_by_kind(WORK, calibration(2, cores=2), {"graph": tried})["graph"]
    assert max(found.round, found.start, found.task - 0.001, found.fold * WORK.state) <= 0.01
    assert seconds(found, "graph", 10, 2) < 1


def test_a_server_takes_what_arrivals_took() -> None:
    found = costs_by_kind(WORK, calibration(4, cores=4, arrival=0.05), {})["server"]
    assert seconds(found, "server", 4, 4) == pytest.approx(4 * 0.05, rel=0.1)


def test_sizes_are_quarters_of_the_workers_and_more_steps_on_all() -> None:
    assert sizes("graph", 1) == [(1, 1), (1, 10)]
    assert sizes("graph", 4) == [(1, 1), (2, 1), (3, 1), (4, 1), (4, 10)]
    assert sizes("gang", 4) == [(2, 1), (3, 1), (4, 1), (4, 10)]
    assert sizes("gang", 10, most_steps=5) == [(3, 1), (5, 1), (8, 1), (10, 1), (10, 5)]
    assert sizes("gang", 2, most_steps=1) == [(2, 1)]
