"""Simulated rounds are sums that can be done by hand, of what the executors do."""

from __future__ import annotations

import json
from math import inf
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.command.subcommands.planning import print_simulation, simulation_summary
from flows.config.algorithms import EVERY_OPTION
from flows.config.train import TrainConfig
from flows.planning.simulating import (
    MESSAGE,
    Costs,
    Setting,
    Simulated,
    SimulatedCluster,
    Simulation,
    graph,
    ranks,
    server,
    simulate,
)
from storage.errors import UsageError
from tasks.executors.graph import FAN_IN

FREE = {"bandwidth": inf, "latency": 0}
"""A cluster on which nothing but computing takes time."""


def work(**changes: Any) -> Costs:
    """Of two steps a map takes 0.2 s, an update on a link of 10 MB/s 0.1 s, and a fold 0.01 s."""
    return Costs(**{"examples": 6400, "batch": 32, "state": 1_000_000, "step": 0.1, "fold": 1e-8} | changes)


def setting(workers: int, costs: Costs | None = None, steps: int = 2, seed: int = 0, **cluster: Any) -> Setting:
    """A machine for each worker, links of 10 MB/s, and no latency, unless it says otherwise."""
    made = SimulatedCluster(**({"cores": 1, "bandwidth": 1e7, "latency": 0} | cluster))
    return Setting(costs or work(), made, workers, steps, seed)


def spent(kind, made: Setting) -> dict[str, float]:
    """Where the time of a round went, without what took none."""
    return {what: seconds for what, seconds in kind(made, 0).items() if seconds > 1e-12}


def total(kind, made: Setting, round: int = 0) -> float:
    return sum(kind(made, round).values())


# Rounds by hand.


def test_tasks_on_four_machines() -> None:
    # The state is at machine 0, at 0.1 s at 1, at 0.2 s at 2 and 3; maps take 0.2 s. Machine 0 takes in three
    # updates for 0.3 s and folds them for 0.03 s.
    wanted = {"state's way": 0.2, "maps": 0.2, "reducer's link": 0.3, "reducer's CPU": 0.03}
    assert spent(graph, setting(4)) == pytest.approx(wanted)


def test_more_tasks_than_one_folds_make_a_tree() -> None:
    # Two nodes of as many updates at once, and one of theirs: the state is there a step later, and one update more
    # comes over a link.
    one = total(graph, setting(FAN_IN, work(fold=0)))
    assert total(graph, setting(2 * FAN_IN, work(fold=0))) == pytest.approx(one + 0.1 + 0.1)


def test_messages_and_the_scheduler() -> None:
    # Two maps are handed out at 5 and 10 ms. The last one to be done is taken back in 5 ms; the reduce is handed
    # out and taken back in 10 ms. The maps' way, the reduce's way and what both say are messages of 1 ms.
    ways = {"state's way": 0.001, "reducer's link": 0.001, "messages": 0.002}
    made = setting(2, work(task=0.01, fold=0), cores=2, latency=0.001)
    assert spent(graph, made) == pytest.approx({"scheduler": 0.025, "maps": 0.2} | ways)


def test_a_scheduler_that_has_more_to_do_than_the_maps_last_is_waited_for() -> None:
    # It is busy all the time: with 50 maps, the four tasks that fold them, and the one that folds those.
    assert total(graph, setting(50, work(task=0.01, fold=0), **FREE)) == pytest.approx(55 * 0.01)


def test_neighbours_on_a_machine_need_no_link() -> None:
    assert spent(graph, setting(4, cores=4)) == pytest.approx({"maps": 0.2, "reducer's CPU": 0.03})
    assert spent(ranks, setting(4, cores=4)) == pytest.approx({"maps": 0.2, "messages": 3 * MESSAGE, "fold": 0.03})


def test_ranks_on_four_machines() -> None:
    # Three steps in a ring, for numbers and for updates of 0.1 s.
    wanted = {"maps": 0.2, "messages": 6 * (MESSAGE + 0.001), "links": 0.3, "fold": 0.03}
    assert spent(ranks, setting(4, latency=0.001)) == pytest.approx(wanted)


def test_ranks_reduce_a_large_state_in_parts() -> None:
    # Of 100 MB each rank is sent three quarters twice, once to fold and once folded, and folds a quarter of three.
    wanted = {"maps": 0.2, "messages": 2 * 6 * MESSAGE, "links": 2 * 7.5, "fold": 0.75}
    assert spent(ranks, setting(4, work(state=100_000_000))) == pytest.approx(wanted)


@pytest.mark.parametrize("kind", [graph, ranks])
def test_a_round_waits_for_the_slowest(kind) -> None:
    made = setting(100, work(fold=0), stragglers=0.05, tail=1.5, **FREE)
    path = spent(kind, made)
    assert path["stragglers"] == pytest.approx(0.2 * (max(made.factors(0)) - 1))
    assert path["maps"] == pytest.approx(0.2)


def test_a_server_is_bound_by_who_is_the_busiest() -> None:
    # A worker alone maps for 0.2 s; of 100 each update takes 0.1 s of the link, or 0.03 s to fold and apply.
    assert spent(server, setting(1)) == pytest.approx({"maps": 0.2})
    assert spent(server, setting(100)) == pytest.approx({"links": 10})
    assert spent(server, setting(100, work(round=0.02), cores=100)) == pytest.approx({"server": 3})


def test_stragglers_follow_their_law_by_the_seed_whatever_the_number_of_workers() -> None:
    few, many, other = (setting(n, seed=seed, stragglers=0.5) for n, seed in ((5, 7), (50, 7), (5, 8)))
    assert many.factors(3)[:5].tolist() == few.factors(3).tolist() != other.factors(3).tolist()
    factors = setting(100_000, stragglers=0.2, tail=3).factors(1)
    assert np.mean(factors > 1) == pytest.approx(0.2, abs=0.01)
    assert factors[factors > 1].mean() == pytest.approx(3 / (3 - 1), rel=0.05)  # of a Pareto law from 1 on


# What is better for machines is never worse for rounds.

COSTS = work(task=0.003, round=0.01)
WORKERS = st.integers(1, 1000)
KINDS = st.sampled_from([graph, ranks, server])
SEEDS = st.integers(0, 1000)


def never_slower(kind, better: dict, worse: dict) -> None:
    quick, slow = (
        sum(total(kind, setting(costs=COSTS, **{"latency": 0.001} | fields), round) for round in range(3))
        for fields in (better, worse)
    )
    assert quick <= slow * (1 + 1e-9)


@given(KINDS, WORKERS, st.integers(1, 4), st.floats(1e5, 1e9), st.floats(1, 100), st.floats(0, 1), st.floats(0, 1))
def test_a_better_network_is_never_slower(kind, workers, cores, bandwidth, more, one, other) -> None:
    same = {"workers": workers, "cores": cores}
    never_slower(kind, {**same, "bandwidth": bandwidth * more}, {**same, "bandwidth": bandwidth})
    never_slower(kind, {**same, "latency": min(one, other)}, {**same, "latency": max(one, other)})


@given(KINDS, WORKERS, SEEDS, st.floats(0, 1), st.floats(0, 1), st.floats(0.5, 10), st.floats(1, 10))
def test_fewer_and_faster_stragglers_are_never_slower(kind, workers, seed, one, other, shape, more) -> None:
    same = {"workers": workers, "seed": seed}
    never_slower(kind, {**same, "stragglers": min(one, other)}, {**same, "stragglers": max(one, other)})
    never_slower(
        kind, {**same, "stragglers": 0.3, "tail": shape * more}, {**same, "stragglers": 0.3, "tail": shape}
    )


# Epochs, efficiency, and what bounds rounds.

FREE_CLUSTER = SimulatedCluster(**FREE)


def point(simulation: Simulation, schedule: str, workers: int) -> Simulated:
    return next(each for each in simulation.points if (each.schedule, each.workers) == (schedule, workers))


def test_epochs_and_efficiency() -> None:
    # 6,400 examples are 200 batches of 32: alone 20 s. Four workers have 50 batches each.
    simulation = simulate(work(fold=0), FREE_CLUSTER, [1, 4], [10])
    names = list(dict.fromkeys(each.schedule for each in simulation.points))
    assert names[:3] == ["synchronous, graph", "local 10, graph", "local epoch, graph"]
    local, messages = point(simulation, "local 10, ranks", 4), 3 * MESSAGE
    assert (local.seconds, local.epoch) == pytest.approx((1 + messages, 5 * (1 + messages)))
    assert local.efficiency == pytest.approx(20 / (4 * local.epoch))
    epoch = point(simulation, "local epoch, graph", 4)
    assert (epoch.seconds, epoch.epoch) == pytest.approx((5, 5))
    assert point(simulation, "local epoch, graph", 1).efficiency == pytest.approx(1)
    assert point(simulation, "asynchronous", 4).epoch == pytest.approx(50 * 0.1)  # of maps of a step


def test_partitions_with_less_than_a_batch_have_small_ones() -> None:
    costs = Costs(examples=60, batch=32, state=8, step=0.1)
    assert costs.epoch_steps(10) == 1
    simulation = simulate(costs, FREE_CLUSTER, [10], [10])
    # Six examples of each worker are all that there are, in a step; ten steps see all of them ten times.
    assert point(simulation, "synchronous, graph", 10).epoch == pytest.approx(0.1)
    assert point(simulation, "local 10, graph", 10).epoch == pytest.approx(0.1)


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
    simulation = simulate(work(**costs), SimulatedCluster(**cluster), [20], [1])
    bounded = point(simulation, "synchronous, graph", 20)
    assert bounded.bound == bound
    assert 0.3 < bounded.share <= 1.0001


def test_a_simulation_follows_from_the_seed_and_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    cluster = SimulatedCluster(stragglers=0.2)
    first, same, other = (simulate(work(), cluster, [10, 3], [5], seed) for seed in (1, 1, 2))
    assert first == same
    assert first.points != other.points
    assert [each.workers for each in first.points if each.schedule == "asynchronous"] == [3, 10]
    assert first.best(10).epoch == min(each.epoch for each in first.points if each.workers == 10)
    print_simulation(first)
    assert capsys.readouterr().out.count("local 5, ranks") == 2
    summary = simulation_summary(first)
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
