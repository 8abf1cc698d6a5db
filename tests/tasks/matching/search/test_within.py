"""Units matched within networks as well as across: pairs by hand, and what their mean computes."""

from __future__ import annotations

import torch
from torch import nn

from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.search.activations import activation_moments
from roundweave.tasks.matching.search.matches import Evidence
from roundweave.tasks.matching.search.within import PAIRS, match_within
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.analysed import mlp

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
