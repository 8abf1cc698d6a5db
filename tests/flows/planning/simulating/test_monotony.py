"""What is better for machines is never worse for rounds.

Of tasks that wait for each other in a tree this is no law: in another order they may take longer (Graham 1969,
Bounds on multiprocessing timing anomalies). So no more are simulated than one folds.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from flows.planning.simulating.rounds import graph, ranks, server
from tests.flows.planning.simulating.simulated import setting, work

WORKERS = st.integers(1, 13)
KINDS = st.sampled_from([graph, ranks, server])
SEEDS = st.integers(0, 1000)
COSTS = work(task=0.003, round=0.01)


def total(kind, *changes: dict) -> list[float]:
    """Seconds of some rounds of a kind, for each change."""
    made = [setting(**({"costs": COSTS, "latency": 0.001} | change)) for change in changes]
    return [sum(kind(each, round)[-1][1] for round in range(3)) for each in made]


@given(KINDS, WORKERS, st.integers(1, 4), st.floats(1e5, 1e9), st.floats(1, 100))
def test_more_bandwidth_is_never_slower(kind, workers, cores, bandwidth, more) -> None:
    same = {"workers": workers, "cores": cores}
    slow, quick = total(kind, {**same, "bandwidth": bandwidth}, {**same, "bandwidth": bandwidth * more})
    assert quick <= slow * (1 + 1e-9)


@given(KINDS, WORKERS, SEEDS, st.floats(0, 1), st.floats(0, 1))
def test_more_stragglers_are_never_faster(kind, workers, seed, one, other) -> None:
    same = {"workers": workers, "seed": seed}
    few, many = total(kind, *({**same, "stragglers": share} for share in sorted((one, other))))
    assert few <= many * (1 + 1e-9)


@given(KINDS, WORKERS, SEEDS, st.floats(0.5, 10), st.floats(1, 10))
def test_a_lighter_tail_is_never_slower(kind, workers, seed, shape, more) -> None:
    same = {"workers": workers, "seed": seed, "stragglers": 0.3}
    heavy, light = total(kind, {**same, "tail": shape}, {**same, "tail": shape * more})
    assert light <= heavy * (1 + 1e-9)


@given(KINDS, WORKERS, st.integers(1, 4), st.floats(0, 1), st.floats(0, 1))
def test_more_latency_is_never_faster(kind, workers, cores, one, other) -> None:
    same = {"workers": workers, "cores": cores}
    short, long = total(kind, *({**same, "latency": latency} for latency in sorted((one, other))))
    assert short <= long * (1 + 1e-9)
