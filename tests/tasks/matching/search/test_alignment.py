"""Matching by weights: a permuted copy is matched back exactly, whatever the architecture."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.errors import ShapeMismatch
from roundweave.tasks.matching.search.matches import Aligner, match
from roundweave.tasks.matching.search.terms import Metric, overall, weight_terms
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.analysed import NAMES, SAMPLE, copies, mlp, scrambled

State = dict[str, torch.Tensor]


METRICS = ["l2", "cosine", "correlation"]
CASES = [
    pytest.param(name, metric, marks=[] if name in SAMPLE and number % 3 == turn else pytest.mark.thorough)
    for number, name in enumerate(NAMES)
    for turn, metric in enumerate(METRICS)
]


@pytest.mark.parametrize(("name", "metric"), CASES)
def test_a_permuted_copy_is_matched_back_exactly(name: str, metric: Metric) -> None:
    units, target, source, order = scrambled(name)
    found = match(target, source, units, metric=metric)
    back = units.permute(source, found)
    assert all(torch.equal(back[tensor], target[tensor]) for tensor in target)
    assert all(torch.equal(found[group], table) for group, table in units.invert(order).items())


def test_descent_is_never_worse_than_its_greedy_start_and_ends_where_no_group_can_be_improved() -> None:
    networks = [mlp(seed, 8, 40, 30, 20, 4) for seed in range(2)]
    one, other = (network.state_dict() for network in networks)
    units = find_units(networks[0], (torch.randn(2, 8),))

    def value(order: State) -> float:
        return overall([t.settled(units.groups, order) for t in weight_terms(one, other, units, "l2")], "l2")

    found, start = match(one, other, units), Aligner(weight_terms(one, other, units, "l2"), units.groups).greedy()
    assert value(found) >= value(start) > value(units.identity())
    again = match(one, other, units, start=found)
    assert all(torch.equal(again[group], table) for group, table in found.items())


def test_permuted_copies_with_a_little_noise_are_matched() -> None:
    _, units, states = copies(2, noise=0.02)
    orders = units.random(torch.Generator().manual_seed(1)), match(*states, units)
    assert all(torch.equal(orders[1][group], table) for group, table in units.invert(orders[0]).items())


def test_views_of_one_vector_are_permuted_where_they_lie() -> None:
    """The tensors of a stored state share one memory, each at an offset of its own."""
    network = mlp(0, 12, 32, 5)
    units = find_units(network, (torch.randn(3, 12),))
    state = network.state_dict()
    whole = torch.cat([tensor.reshape(-1) for tensor in state.values()])
    parts = whole.split([tensor.numel() for tensor in state.values()])
    views = {name: part.view(state[name].shape) for name, part in zip(state, parts, strict=True)}
    order = units.random(torch.Generator().manual_seed(1))
    expected, found = units.permute(state, order), units.permute(views, order)
    assert all(torch.equal(found[name], expected[name]) for name in state)
    assert torch.equal(whole, torch.cat([tensor.reshape(-1) for tensor in state.values()])), "left as it was"


def test_biases_alone_inform_the_match() -> None:
    """Two units with the same weights, told apart by their biases."""
    network = mlp(0, 3, 2, 2)
    state = network.state_dict()
    state["0.weight"] = torch.ones(2, 3)
    state["2.weight"] = torch.ones(2, 2)
    state["0.bias"] = torch.tensor([1.0, -1.0])
    units = find_units(network, (torch.randn(2, 3),))
    swapped = units.permute(state, {"0": torch.tensor([1, 0])})
    assert match(state, swapped, units)["0"].tolist() == [1, 0]


@pytest.mark.parametrize(
    ("order", "says"),
    [
        ({"zzz": torch.arange(3)}, "no group 'zzz'"),
        ({"0": torch.zeros(32, dtype=torch.int64)}, "no permutation"),
        ({"0": torch.arange(5)}, "no permutation"),
    ],
)
def test_what_is_no_permutation_is_refused(order: State, says: str) -> None:
    network = mlp(0, 12, 32, 5)
    units = find_units(network, (torch.randn(3, 12),))
    with pytest.raises(ShapeMismatch, match=says):
        units.permute(network.state_dict(), order)
