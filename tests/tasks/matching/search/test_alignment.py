"""Matching by weights: a permuted copy is matched back exactly, whatever the architecture."""

from __future__ import annotations

import pytest
import torch

from roundweave.storage.errors import ShapeMismatch, UsageError
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.search.matches import Aligner, match
from roundweave.tasks.matching.search.terms import Metric, overall, weight_terms
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.analysed import NAMES, mlp, scrambled

State = dict[str, torch.Tensor]


METRICS = ["l2", "cosine", "correlation"]
SAMPLE = [(name, METRICS[number % 3]) for number, name in enumerate(NAMES)][::2]
REST = [(name, metric) for name in NAMES for metric in METRICS if (name, metric) not in SAMPLE]


@pytest.mark.parametrize(
    ("name", "metric"), [*SAMPLE, *(pytest.param(*each, marks=pytest.mark.slow) for each in REST)]
)
def test_a_permuted_copy_is_matched_back_exactly(name: str, metric: Metric) -> None:
    units, target, source, order = scrambled(name)
    found = match(target, source, units, metric=metric)
    back = units.permute(source, found)
    assert all(torch.equal(back[tensor], target[tensor]) for tensor in target)
    assert all(torch.equal(found[group], table) for group, table in units.invert(order).items())


def test_descent_is_never_worse_than_its_greedy_start_and_ends_where_no_group_can_be_improved() -> None:
    one, other = mlp(0, 8, 40, 30, 20, 4).state_dict(), mlp(1, 8, 40, 30, 20, 4).state_dict()
    units = find_units(mlp(0, 8, 40, 30, 20, 4), (torch.randn(2, 8),))
    start = Aligner(weight_terms(one, other, units, "l2"), units.groups).greedy()
    found = match(one, other, units)
    values = [overall_value(units, one, other, order) for order in (found, start, units.identity())]
    assert values[0] >= values[1] > values[2]
    again = match(one, other, units, start=found)
    assert all(torch.equal(again[group], table) for group, table in found.items())


def overall_value(units: UnitGroups, target: State, source: State, order: State) -> float:
    terms = [t.settled(units.groups, order) for t in weight_terms(target, source, units, "l2")]
    return overall(terms, "l2")


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16, torch.float16])
def test_permuted_copies_with_a_little_noise_are_matched_in_any_type_of_numbers(dtype: torch.dtype) -> None:
    network = mlp(0, 12, 64, 48, 5).to(dtype)
    units = find_units(mlp(0, 12, 64, 48, 5), (torch.randn(3, 12),))
    order = units.random(torch.Generator().manual_seed(1))
    copy = units.permute(network.state_dict(), order)
    found = match(network.state_dict(), {n: t + 0.02 * torch.randn_like(t) for n, t in copy.items()}, units)
    assert all(torch.equal(found[group], table) for group, table in units.invert(order).items())


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


def test_heads_are_matched_with_their_own_dimensions() -> None:
    """Each head's dimensions are permuted on their own; moving a head moves them with it."""
    units, target, source, order = scrambled("gpt")
    dependent = [name for name, group in units.groups.items() if group.parents]
    assert dependent
    table = order[dependent[0]]
    assert table.ndim == 2
    assert not torch.equal(table[0], table[1]), "the heads were given orders of their own"
    assert torch.equal(match(target, source, units)[dependent[0]], units.invert(order)[dependent[0]])


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


def test_networks_that_are_not_finite_are_refused_by_name() -> None:
    network = mlp(0, 12, 32, 5)
    units = find_units(network, (torch.randn(3, 12),))
    broken = network.state_dict() | {"0.bias": torch.full((32,), torch.nan)}
    with pytest.raises(UsageError, match=r"tensor 0\.bias of network 1"):
        match(network.state_dict(), broken, units)
