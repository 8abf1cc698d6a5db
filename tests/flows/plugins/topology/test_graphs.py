"""Topologies: neighbours by hand, and what is true of the weights of each."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import TrainConfig, UsageError
from roundweave.flows.plugins.topology.graphs import TOPOLOGIES, Edges, Topology, Torus, TwoLevel, find_topology


def weights(topology: Topology, partitions: int, exchange: int = 1) -> np.ndarray:
    """The matrix of a topology's weights, (partition, partition)."""
    rows = [topology.weights(partition, partitions, exchange) for partition in range(partitions)]
    return np.array([[row.get(each, 0.0) for each in range(partitions)] for row in rows])


def neighbours(topology: Topology, partitions: int, exchange: int = 1) -> list[set[int]]:
    return [{*topology.around(each, partitions, exchange)} - {each} for each in range(partitions)]


def named(text: str, partitions: int) -> Topology:
    found = find_topology(text, partitions)
    assert found is not None
    return found


@st.composite
def topologies(draw: st.DrawFn) -> tuple[Topology, int]:
    """A topology of each kind, and a number of partitions that it is for."""
    kind, partitions = draw(st.sampled_from([*TOPOLOGIES, "edges"])), draw(st.integers(1, 40))
    size = draw(st.sampled_from([each for each in range(1, partitions + 1) if partitions % each == 0]))
    if kind == "edges":
        tree = [(draw(st.integers(0, each - 1)), each) for each in range(1, partitions)]
        more = draw(st.lists(st.tuples(*[st.integers(0, partitions - 1)] * 2), max_size=20))
        return Edges((*tree, *more)), partitions
    argument = {"torus": f":{size}", "two_level": f":{size}:{draw(st.integers(1, 5))}"}.get(kind, "")
    return named(kind + argument, partitions), partitions


@settings(max_examples=40)
@given(topologies(), st.integers(0, 9))
def test_the_weights_are_symmetric_and_doubly_stochastic_and_join_all(drawn, exchange) -> None:
    topology, partitions = drawn
    topology.check(partitions)
    matrix = weights(topology, partitions, exchange)
    assert (matrix == matrix.T).all()
    assert (matrix >= 0).all()
    np.testing.assert_allclose(matrix.sum(0), 1, rtol=0, atol=1e-15 * partitions)
    # Exchanges of all rounds together lead from each partition to each other one.
    every = sum(weights(topology, partitions, each) for each in range(5))
    assert (np.linalg.matrix_power(every, partitions) > 0).all()
    assert pickle.loads(pickle.dumps(topology)) == topology


def test_a_ring_by_hand() -> None:
    assert neighbours(named("ring", 5), 5) == [{1, 4}, {0, 2}, {1, 3}, {2, 4}, {3, 0}]
    assert named("ring", 5).weights(0, 5, 1) == {0: pytest.approx(1 / 3), 1: 1 / 3, 4: 1 / 3}
    assert named("ring", 2).weights(1, 2, 1) == {0: 0.5, 1: 0.5}
    assert named("ring", 1).weights(0, 1, 1) == {0: 1.0}


def test_a_torus_by_hand() -> None:
    """Two rows of three, and three of three: 0 3 6 / 1 4 7 / 2 5 8."""
    assert neighbours(Torus(2), 6) == [{1, 2, 4}, {0, 3, 5}, {3, 0, 4}, {2, 1, 5}, {5, 0, 2}, {4, 1, 3}]
    nine = neighbours(Torus(3), 9)
    assert (nine[0], nine[4], nine[8]) == ({1, 2, 3, 6}, {1, 7, 3, 5}, {7, 6, 5, 2})
    assert weights(Torus(3), 9)[4].tolist() == pytest.approx([0, 0.2, 0, 0.2, 0.2, 0.2, 0, 0.2, 0])


def test_what_is_a_ring_by_another_name_has_its_weights() -> None:
    edges = Edges(tuple((n, (n + 1) % 7) for n in range(7)))
    for topology in (Torus(1), Torus(7), edges):
        assert (weights(topology, 7) == weights(named("ring", 7), 7)).all()
    assert (weights(named("exponential", 3), 3) == weights(named("ring", 3), 3)).all()


def test_an_exponential_graph_by_hand() -> None:
    assert neighbours(named("exponential", 9), 9)[0] == {1, 8, 2, 7, 4, 5}
    assert neighbours(named("exponential", 16), 16)[3] == {4, 2, 5, 1, 7, 15, 11}


def test_a_star_by_hand() -> None:
    """The hub has 3 neighbours and each other one 1, so that every edge has the weight 1 / 4."""
    wanted = [[0.25, 0.25, 0.25, 0.25], [0.25, 0.75, 0, 0], [0.25, 0, 0.75, 0], [0.25, 0, 0, 0.75]]
    assert weights(named("star", 4), 4).tolist() == wanted


def test_two_levels_are_the_mean_of_a_site_and_after_each_kth_round_of_all() -> None:
    site, apart = np.full((2, 2), 0.5), np.zeros((2, 2))
    for exchange in range(1, 7):
        wanted = np.full((4, 4), 0.25) if exchange % 3 == 0 else np.block([[site, apart], [apart, site]])
        np.testing.assert_allclose(weights(TwoLevel(2, 3), 4, exchange), wanted, rtol=1e-15)


def test_edges_by_hand() -> None:
    """A path 0 - 1 - 2 with 3 at its middle: an edge twice, from either side, is one edge."""
    matrix = weights(Edges(((0, 1), (1, 0), (1, 2), (3, 1))), 4)
    assert matrix[1].tolist() == [0.25, 0.25, 0.25, 0.25]
    assert matrix[3].tolist() == [0, 0.25, 0, 0.75]


def test_a_file_of_edges(tmp_path) -> None:
    file = tmp_path / "edges.json"
    for text in ("", "[[0, 1"):
        file.write_text(text)
        with pytest.raises(UsageError, match=r"edges.json cannot be read: .*Expecting"):
            TrainConfig(topology=str(file))
    file.write_text("[[0, 1], [1, 2]]")
    assert TrainConfig(topology=str(file)).topology == ((0, 1), (1, 2))
    assert TrainConfig(topology="ring").topology == "ring"
