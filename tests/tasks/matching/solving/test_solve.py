"""Solved layers: against least squares by hand, for equal parents, and where nothing is known."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.solving.grams import gram_matrices, layers_of
from roundweave.tasks.matching.solving.solve import ParentLayer, least_squares, regmean, solved
from tests.tasks.matching.analysed import analysed, mlp, networks

INPUTS = 12


def parents(count: int = 2) -> tuple[nn.Module, list[dict[str, torch.Tensor]], list[tuple[torch.Tensor]]]:
    """Networks of other weights each, and inputs of their own."""
    networks = [mlp(seed, INPUTS, 20, 16, 4).double() for seed in range(count)]
    generator = torch.Generator().manual_seed(7)
    inputs = [(torch.randn(100, INPUTS, generator=generator, dtype=torch.float64) + i,) for i in range(count)]
    return networks[0], [network.state_dict() for network in networks], inputs


def by_grams(network, states, inputs, weights=(1, 1), **fields) -> dict[str, torch.Tensor]:
    grams = [gram_matrices(network, state, each) for state, each in zip(states, inputs, strict=True)]
    return dict(regmean(states, grams, layers_of(network, inputs[0]), weights, **fields))


def one(values: torch.Tensor) -> torch.Tensor:
    return torch.cat([values, torch.ones(len(values), 1, dtype=values.dtype)], 1)


def test_by_hand() -> None:
    # Two parents with one input each: 3 of an input with mean square 1, and 5 of one with mean square 4.
    wanted = [
        ParentLayer(*(torch.full((1, 1, 1), value, dtype=torch.float64) for value in (weight, square, product)))
        for weight, square, product in ((3.0, 1.0, 3.0), (5.0, 4.0, 20.0))
    ]
    found = solved(wanted, [1, 1]).item()
    assert found == pytest.approx((3 * 1 + 5 * 4) / 5, rel=1e-6)
    assert solved(wanted, [3, 1]).item() == pytest.approx((3 * 3 * 1 + 5 * 4) / 7, rel=1e-6)


def test_without_shrinkage_a_single_layer_has_the_least_squares_of_all_examples() -> None:
    network, generator = nn.Linear(INPUTS, 4).double(), torch.Generator().manual_seed(1)
    states = [nn.Linear(INPUTS, 4).double().state_dict() for _ in range(2)]
    inputs = [(torch.randn(100, INPUTS, generator=generator, dtype=torch.float64) * (i + 1),) for i in range(2)]
    rows = torch.cat([one(x) for (x,) in inputs])
    outputs = torch.cat([x @ s["weight"].T + s["bias"] for (x,), s in zip(inputs, states, strict=True)])
    wanted = torch.linalg.lstsq(rows, outputs).solution
    for solve in (by_grams, least_squares):
        found = solve(network, states, inputs, [1, 1], shrinkage=1.0)
        torch.testing.assert_close(found["weight"].T, wanted[:-1], rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(found["bias"], wanted[-1], rtol=1e-4, atol=1e-4)


def test_with_no_products_of_unlike_inputs_each_column_is_weighted_by_its_own_square() -> None:
    network, states, inputs = parents()
    found = by_grams(network, states, inputs, shrinkage=0.0)
    squares = [x.square().mean(0) for (x,) in inputs]
    wanted = sum(s["0.weight"] * each for s, each in zip(states, squares, strict=True)) / sum(squares)
    torch.testing.assert_close(found["0.weight"], wanted, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("name", networks("gpt"))  # packed attention
def test_equal_parents_are_what_is_solved_for(name) -> None:
    network, inputs, _ = analysed(name)
    state = network.state_dict()
    found = least_squares(network, [state, dict(state)], [inputs, inputs], [1, 2])
    torch.testing.assert_close(found, dict(state), rtol=1e-3, atol=2e-5)
    found = by_grams(network, [state, state], [inputs, inputs], [1, 2])
    torch.testing.assert_close(found, {name: state[name] for name in found}, rtol=1e-3, atol=2e-5)


def test_the_whole_weight_on_one_network_gives_that_network() -> None:
    network, states, inputs = parents(3)
    found = least_squares(network, states, inputs, [0, 1, 0])
    for name, tensor in found.items():
        torch.testing.assert_close(tensor, states[1][name], rtol=1e-6, atol=1e-8)


def test_the_merged_layers_come_nearer_to_what_parents_give_than_the_mean() -> None:
    network, states, inputs = parents()
    mean = average(states, [1, 1])

    def outputs(state: dict[str, torch.Tensor], values: torch.Tensor) -> torch.Tensor:
        return torch.func.functional_call(network, state, (values,))

    def distance(merged: dict[str, torch.Tensor]) -> float:
        each = zip(states, inputs, strict=True)
        return sum((outputs(merged, x) - outputs(s, x)).square().mean().item() for s, (x,) in each)

    solved_by_grams = mean | by_grams(network, states, inputs)
    assert distance(least_squares(network, states, inputs, [1, 1])) < distance(solved_by_grams) < distance(mean)


def test_inputs_that_are_always_zero_keep_the_mean() -> None:
    network, states, inputs = parents()
    inputs = [(torch.cat([x[:, :-2], torch.zeros(len(x), 2)], 1),) for (x,) in inputs]
    found = least_squares(network, states, inputs, [1, 3])
    wanted = average(states, [1, 3])["0.weight"]
    torch.testing.assert_close(found["0.weight"][:, -2:], wanted[:, -2:], rtol=1e-12, atol=0)
    assert not torch.allclose(found["0.weight"][:, :-2], wanted[:, :-2])
    nothing = [(torch.zeros(100, INPUTS, dtype=torch.float64),)] * 2
    every = least_squares(network, states, nothing, [1, 3])
    torch.testing.assert_close(every["0.weight"], wanted, rtol=1e-12, atol=0)


def test_what_is_of_no_layer_is_the_mean() -> None:
    network, inputs, _ = analysed("gpt")
    state = network.state_dict()
    other = {name: tensor * 1.5 if tensor.is_floating_point() else tensor for name, tensor in state.items()}
    found = least_squares(network, [state, other], [inputs, inputs], [1, 1])
    mean = average([state, other], [1, 1])
    owned = {t for layer in layers_of(network, inputs).values() for t in (layer.weight, layer.bias)}
    assert owned
    assert all(torch.equal(found[name], mean[name]) for name in state if name not in owned)


def test_a_missing_matrix_is_named() -> None:
    network, states, inputs = parents()
    layers = layers_of(network, inputs[0])
    grams = gram_matrices(network, states[0], inputs[0])
    lacking = {name: gram for name, gram in grams.items() if name != "2.weight"}
    with pytest.raises(UsageError, match=r"no Gram matrix of 2\.weight for network 1"):
        dict(regmean(states, [grams, lacking], layers, [1, 1]))
