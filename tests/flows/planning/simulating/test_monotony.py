"""What is better for machines is never worse for rounds.

Of tasks that wait for each other in a tree this is no law: in another order they may take longer (Graham 1969,
Bounds on multiprocessing timing anomalies).
"""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flows.planning.simulating.runs.gang import Gang
from flows.planning.simulating.runs.graph import Graph
from tests.flows.planning.simulating.simulated import setting, work

WORKERS = st.integers(1, 13)
KINDS = st.just((Graph, None)) | st.tuples(st.just(Gang), st.none() | st.integers(2, 4))
SEEDS = st.integers(0, 1000)
COSTS = work(task=0.003, round=0.01, message=0.001)


def total(kind: tuple, *changes: dict) -> list[float]:
    """Seconds of some rounds of a kind of run with a fan-in, for each change."""
    made, fan_in = kind
    given = {"costs": COSTS, "latency": 0.001, "fan_in": fan_in}
    return [sum(made(setting(**(given | change))).run(3).seconds) for change in changes]


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


@given(KINDS, WORKERS, st.integers(1, 4), st.integers(1, 4))
def test_more_cores_a_machine_are_never_slower_for_the_same_machines(kind, workers, cores, more) -> None:
    same = {"workers": workers, "machines": 2}
    few, many = total(kind, {**same, "cores": cores}, {**same, "cores": cores + more})
    assert many <= few * (1 + 1e-9)


@pytest.mark.parametrize("kind", [Graph, Gang])
@pytest.mark.parametrize("workers", [64, 100, 512])
def test_a_tree_relieves_the_link_of_large_rounds(kind, workers: int) -> None:
    flat, tree = total((kind, None), {"workers": workers}, {"workers": workers, "fan_in": 8})
    assert tree < flat / 2
