"""Curves: epochs, efficiency, what bounds rounds, and how they are told."""

from __future__ import annotations

import json
from math import inf, isinf
from pathlib import Path

import pytest

from flows.command.printing.simulation_tables import print_simulation, simulation_summary
from flows.config.algorithms import EVERY_OPTION
from flows.config.train import TrainConfig
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.curves import Curves, simulate
from flows.planning.simulating.plotting import draw
from storage.errors import UsageError
from tests.flows.planning.simulating.simulated import FREE, work

FREE_CLUSTER = SimulatedCluster(**FREE)


def point(curves: Curves, schedule: str, workers: int):
    return next(each for each in curves.of(schedule) if each.workers == workers)


def test_epochs_and_efficiency() -> None:
    # 6,400 examples are 200 batches of 32: alone 20.05 s. Four workers have 50 batches each.
    curves = simulate(work(fold=0), FREE_CLUSTER, [1, 4], [10])
    assert curves.schedules[:3] == ["synchronous, graph", "local 10, graph", "local epoch, graph"]
    local = point(curves, "local 10, gang", 4)
    assert (local.seconds, local.epoch) == pytest.approx((1.05, 5 * 1.05))
    assert local.efficiency == pytest.approx(20.05 / (4 * 5.25))
    epoch = point(curves, "local epoch, graph", 4)
    assert (epoch.seconds, epoch.epoch) == pytest.approx((5.05, 5.05))
    assert point(curves, "local epoch, graph", 1).efficiency == pytest.approx(1)
    assert point(curves, "asynchronous", 4).epoch == pytest.approx(50 * 0.15)


def test_partitions_with_less_than_a_batch_have_small_ones() -> None:
    costs = Costs(examples=60, batch=32, state=8, step=0.1)
    assert costs.epoch_steps(10) == 1
    assert costs.rounds(1, 10) == pytest.approx(1)  # six examples each are all there are
    assert costs.rounds(10, 10) == pytest.approx(0.1)
    assert costs.rounds(1, 1) == pytest.approx(60 / 32)


@pytest.mark.parametrize(
    ("bound", "costs", "cluster"),
    [
        ("maps", {"fold": 0}, FREE),
        ("scheduler", {"task": 1}, FREE),
        ("reducer's link", {"state": 100_000_000, "fold": 0}, {"cores": 1}),
        ("reducer's CPU", {"fold": 1e-6}, FREE),
        ("apply", {"round": 5}, FREE),
        ("store", {}, {"store": 1e6, **FREE}),
        ("stragglers", {}, {"stragglers": 1, "tail": 0.3, **FREE}),
        ("failures", {}, {"failures": 2, "detection": 60, **FREE}),
        ("state's way", {"state": 10**10, "fold": 0}, {"cores": 1, "reducers": 20}),
    ],
)
def test_what_bounds_rounds(bound: str, costs: dict, cluster: dict) -> None:
    curves = simulate(work(**costs), SimulatedCluster(**cluster), [20], [1])
    bounded = point(curves, "synchronous, graph", 20)
    assert bounded.bound == bound
    assert 0.3 < bounded.share <= 1.0001


def test_what_is_held_at_once() -> None:
    curves = simulate(work(), SimulatedCluster(reducers=2), [100], [1])
    held = {each.schedule: each.held for each in curves.points}
    assert held["synchronous, graph"] == 50e6
    assert held["synchronous, gang"] == 50e6
    assert held["asynchronous"] == 32e6
    tree = simulate(work(), SimulatedCluster(fan_in=8), [100], [1])
    assert {each.held for each in tree.points if each.schedule != "asynchronous"} == {8e6}


def test_curves_follow_from_the_seed() -> None:
    cluster = SimulatedCluster(stragglers=0.2, failures=100)
    curves = [simulate(work(), cluster, [10, 3], [5], seed) for seed in (1, 1, 2)]
    assert curves[0] == curves[1]
    assert curves[0].points != curves[2].points
    assert [each.workers for each in curves[0].of("asynchronous")] == [3, 10]
    assert curves[0].best(10) is min(curves[0].at(10), key=lambda each: each.epoch)


def test_what_never_ends_is_told_so(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    curves = simulate(work(), SimulatedCluster(failures=1e-3), [2, 4], [1])
    assert all(isinf(each.seconds) and each.efficiency == 0 and each.bound == "failures" for each in curves.points)
    print_simulation(curves)
    assert "never" in capsys.readouterr().out
    assert json.loads(json.dumps(simulation_summary(curves), allow_nan=False))["points"][0]["seconds"] is None
    draw(curves, tmp_path / "curves.png")


def test_curves_are_printed_and_drawn(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    curves = simulate(work(), SimulatedCluster(stragglers=0.1), [1, 2], [10])
    print_simulation(curves)
    out = capsys.readouterr().out
    assert out.count("local 10, gang") == 2
    summary = simulation_summary(curves)
    assert json.loads(json.dumps(summary, allow_nan=False))["points"][0]["schedule"] == "synchronous, graph"
    draw(curves, tmp_path / "curves.png")
    assert (tmp_path / "curves.png").read_bytes().startswith(b"\x89PNG")


def test_flags_mean_one_thing() -> None:
    assert not {*SimulatedCluster.model_fields} & {*TrainConfig.model_fields, *EVERY_OPTION}


@pytest.mark.parametrize(
    "wrong", [{"bandwidth": 0}, {"stragglers": 1.1}, {"wait_for": 0}, {"fan_in": 1}, {"cores": 0}, {"tail": -1}]
)
def test_clusters_that_cannot_be_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SimulatedCluster(**wrong)


def test_costs_and_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="step = 0 is not positive"):
        work(step=0)
    with pytest.raises(UsageError, match="task = -1 is not zero or more"):
        work(task=-1)
    with pytest.raises(UsageError, match="at least one number of workers"):
        simulate(work(), FREE_CLUSTER, [])
    with pytest.raises(UsageError, match="workers = 0: at least 1"):
        simulate(work(), FREE_CLUSTER, [0])
    assert work(write=inf).map_seconds(2) == 0.25
