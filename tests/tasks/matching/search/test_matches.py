"""Several networks at once, units within networks, mixtures: what the match of two networks is used for."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.search.activations import activation_moments
from roundweave.tasks.matching.search.matches import Evidence, match, match_all, match_each
from roundweave.tasks.matching.search.within import PAIRS, match_within
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.analysed import copies, mlp

State = dict[str, torch.Tensor]


@pytest.mark.parametrize("together", ["first", "many"])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_permuted_copies_are_all_brought_into_the_order_of_the_first(together: str, count: int) -> None:
    _, units, states = copies(count)
    orders = match_all(Evidence(states, units), together)  # type: ignore[arg-type]
    for state, order in zip(states, orders, strict=True):
        aligned = units.permute(state, order)
        assert all(torch.equal(aligned[name], states[0][name]) for name in aligned)


def test_matching_to_one_another_brings_networks_nearer_to_their_mean() -> None:
    states = [mlp(seed, 10, 24, 16, 4).state_dict() for seed in range(4)]
    units = find_units(mlp(0, 10, 24, 16, 4), (torch.randn(2, 10),))
    evidence = Evidence(states, units)

    def spread(orders: list[State]) -> float:
        aligned = [units.permute(state, order) for state, order in zip(states, orders, strict=True)]
        return sum(torch.stack([a[name] for a in aligned]).var(0).sum().item() for name in states[0])

    assert spread(match_all(evidence, "many")) < spread(match_all(evidence, "first"))
    assert spread(match_all(evidence, "first")) < spread([units.identity()] * 4)


# Mixtures


def test_a_mixture_is_carried_into_the_next_layer_by_hand() -> None:
    network = nn.Sequential(nn.Linear(1, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    units = find_units(network, (torch.randn(2, 1),))
    state = {"0.weight": torch.tensor([[2.0], [4.0]]), "2.weight": torch.tensor([[10.0, 20.0]])}
    mixed = units.permute(state, {"0": torch.tensor([[0.5, 0.5], [0.0, 1.0]])})
    assert mixed["0.weight"].tolist() == [[3.0], [4.0]]
    assert mixed["2.weight"].tolist() == [[15.0, 20.0]]


def test_each_network_is_mixed_towards_the_first() -> None:
    _, units, states = copies(3)
    orders = match_each(Evidence(states, units), 1, 0.1)
    for state, order in zip(states, orders, strict=True):
        aligned = units.permute(state, order)
        assert all(torch.allclose(aligned[name], states[0][name]) for name in aligned)


# Types of numbers


SMALL = [torch.float16, torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2]


@pytest.mark.parametrize("dtype", [*SMALL, torch.float64])
def test_copies_in_any_type_are_recovered(dtype: torch.dtype) -> None:
    network, units, _ = copies(1)
    state = {name: tensor.to(dtype) for name, tensor in network.state_dict().items()}
    permuted = units.permute(state, units.random(torch.Generator().manual_seed(1)))
    back = units.permute(permuted, match(state, permuted, units))
    assert all(torch.equal(back[name].double(), state[name].double()) for name in state)
    other = network.state_dict()
    assert torch.equal(match(other, permuted, units)["0"], match(state, permuted, units)["0"])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float8_e4m3fn])
def test_a_value_that_is_no_number_is_named(dtype: torch.dtype) -> None:
    network, units, _ = copies(1)
    state = {name: tensor.to(dtype, copy=True) for name, tensor in network.state_dict().items()}
    state["2.weight"][0, 0] = float("nan")
    with pytest.raises(UsageError, match=r"tensor 2\.weight of network 1 has values that are not finite"):
        match(network.state_dict(), state, units)


INPUTS = torch.randn(400, 6, generator=torch.Generator().manual_seed(2))


def zipped(one: nn.Module, other: nn.Module, metric: str = "correlation") -> list[dict[str, torch.Tensor]]:
    units = find_units(one, (INPUTS[:100],))
    states = [one.state_dict(), other.state_dict()]
    moments = activation_moments(one, states, INPUTS, units, PAIRS)
    return match_within(Evidence(states, units, "activations", metric, moments))


def layers(rows: list[list[float]], head: list[list[float]]) -> nn.Module:
    network = nn.Sequential(nn.Linear(6, len(rows), bias=False), nn.ReLU(), nn.Linear(len(rows), 1, bias=False))
    network[0].weight.data[:] = torch.tensor(rows)
    network[2].weight.data[:] = torch.tensor(head)
    return network


def test_units_that_are_alike_in_one_network_are_paired_there() -> None:
    # The first network has the same unit twice, and so has the second, another one.
    a, b = torch.eye(6)[:2].tolist()
    one, other = layers([a, a], [[1.0, 2.0]]), layers([b, b], [[3.0, -5.0]])
    first, second = (order["0"] for order in zipped(one, other))
    assert sorted(first.sum(1).tolist()) == sorted(second.sum(1).tolist()) == [0.0, 2.0]
    units = find_units(one, (INPUTS[:100],))
    states = [units.permute(n.state_dict(), {"0": t}) for n, t in ((one, first), (other, second))]
    one.load_state_dict(average(states, [1, 1]))
    # Each pair is one unit, which the head weighs by the sum of both; the mean of two networks halves the outputs.
    wanted = (3.0 * INPUTS[:, :1].relu() - 2.0 * INPUTS[:, 1:2].relu()) / 2
    torch.testing.assert_close(one(INPUTS), wanted)


def test_a_permuted_copy_is_paired_with_itself() -> None:
    network = mlp(0, 6, 10, 8, 3)
    units = find_units(network, (INPUTS[:100],))
    order = units.random(torch.Generator().manual_seed(1))
    other = mlp(0, 6, 10, 8, 3)
    other.load_state_dict(units.permute(network.state_dict(), order))
    first, second = zipped(network, other)
    states = [units.permute(n.state_dict(), t) for n, t in ((network, first), (other, second))]
    merged = mlp(0, 6, 10, 8, 3)
    merged.load_state_dict(average(states, [1, 1]))
    torch.testing.assert_close(merged(INPUTS), network(INPUTS))
