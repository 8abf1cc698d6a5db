"""Curves: epochs, efficiency, what bounds rounds, and how they are told."""

from __future__ import annotations

import json

import pytest

from flows.command.subcommands.planning import print_simulation, simulation_summary
from flows.config.algorithms import EVERY_OPTION
from flows.config.train import TrainConfig
from flows.planning.simulating.costs import Costs, SimulatedCluster
from flows.planning.simulating.curves import Curves, Point, simulate
from flows.planning.simulating.rounds import MESSAGE
from storage.errors import UsageError
from tests.flows.planning.simulating.simulated import FREE, work

FREE_CLUSTER = SimulatedCluster(**FREE)


def point(curves: Curves, schedule: str, workers: int) -> Point:
    return next(each for each in curves.points if (each.schedule, each.workers) == (schedule, workers))


def test_epochs_and_efficiency() -> None:
    # 6,400 examples are 200 batches of 32: alone 20 s. Four workers have 50 batches each.
    curves = simulate(work(fold=0), FREE_CLUSTER, [1, 4], [10])
    names = list(dict.fromkeys(each.schedule for each in curves.points))
    assert names[:3] == ["synchronous, graph", "local 10, graph", "local epoch, graph"]
    local, said = point(curves, "local 10, ranks", 4), 3 * MESSAGE
    assert (local.seconds, local.epoch) == pytest.approx((1 + said, 5 * (1 + said)))
    assert local.efficiency == pytest.approx(20 / (4 * local.epoch))
    epoch = point(curves, "local epoch, graph", 4)
    assert (epoch.seconds, epoch.epoch) == pytest.approx((5, 5))
    assert point(curves, "local epoch, graph", 1).efficiency == pytest.approx(1)
    assert point(curves, "asynchronous", 4).epoch == pytest.approx(50 * 0.1)  # of maps of a step


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
        ("round", {"round": 20}, FREE),
        ("stragglers", {}, {"stragglers": 1, "tail": 0.3, **FREE}),
    ],
)
def test_what_bounds_rounds(bound: str, costs: dict, cluster: dict) -> None:
    curves = simulate(work(**costs), SimulatedCluster(**cluster), [20], [1])
    bounded = point(curves, "synchronous, graph", 20)
    assert bounded.bound == bound
    assert 0.3 < bounded.share <= 1.0001


def test_curves_follow_from_the_seed() -> None:
    cluster = SimulatedCluster(stragglers=0.2)
    curves = [simulate(work(), cluster, [10, 3], [5], seed) for seed in (1, 1, 2)]
    assert curves[0] == curves[1]
    assert curves[0].points != curves[2].points
    assert [each.workers for each in curves[0].points if each.schedule == "asynchronous"] == [3, 10]
    assert curves[0].best(10).epoch == min(each.epoch for each in curves[0].points if each.workers == 10)


def test_curves_are_printed(capsys: pytest.CaptureFixture[str]) -> None:
    curves = simulate(work(), SimulatedCluster(stragglers=0.1), [1, 2], [10])
    print_simulation(curves)
    assert capsys.readouterr().out.count("local 10, ranks") == 2
    summary = simulation_summary(curves)
    assert json.loads(json.dumps(summary, allow_nan=False))["points"][0]["schedule"] == "synchronous, graph"


def test_flags_mean_one_thing() -> None:
    assert not {*SimulatedCluster.model_fields} & {*TrainConfig.model_fields, *EVERY_OPTION}


@pytest.mark.parametrize("wrong", [{"bandwidth": 0}, {"stragglers": 1.1}, {"cores": 0}, {"tail": -1}])
def test_clusters_that_cannot_be_are_refused(wrong: dict) -> None:
    with pytest.raises(UsageError, match=next(iter(wrong))):
        SimulatedCluster(**wrong)


def test_costs_and_numbers_that_cannot_be_are_refused() -> None:
    with pytest.raises(UsageError, match="step = 0 is not positive"):
        work(step=0)
    with pytest.raises(UsageError, match="task = -1 is not zero or more"):
        work(task=-1)
    for workers in ([], [10, 0]):
        with pytest.raises(UsageError, match="numbers of workers of at least 1, such as 10,100,1000"):
            simulate(work(), FREE_CLUSTER, workers)
