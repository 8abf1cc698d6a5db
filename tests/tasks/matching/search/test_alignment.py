"""Matching by weights: a permuted copy is matched back exactly, whatever the architecture."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.errors import ShapeMismatch
from roundweave.tasks.matching.search.matches import Aligner, match
from roundweave.tasks.matching.search.terms import Metric, overall, weight_terms
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.analysed import NAMES, copies, mlp, scrambled

State = dict[str, torch.Tensor]


METRICS = ["l2", "cosine", "correlation"]
"""Each metric, on convolutions, tied embeddings, units that are on both axes, and heads within groups of heads."""


FIRST = {("cnn", "l2"), ("gpt", "cosine"), ("lstm", "correlation"), ("transformers_llama_eager", "l2")}
"""Each metric, on convolutions, tied embeddings, units that are on both axes, and heads within groups of heads."""
CASES = FIRST | {(name, METRICS[number % 3]) for number, name in enumerate(NAMES)}


@pytest.mark.parametrize(
    ("name", "metric"),
    [pytest.param(*case, marks=[] if case in FIRST else pytest.mark.thorough) for case in sorted(CASES)],
)
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
    "order", [{"zzz": torch.arange(3)}, {"0": torch.zeros(24).long()}, {"0": torch.arange(5)}]
)
def test_what_is_no_permutation_is_refused(order: State) -> None:
    _, units, (state,) = copies(1)
    with pytest.raises(ShapeMismatch, match="no group 'zzz'" if "zzz" in order else "no permutation"):
        units.permute(state, order)
