"""Repair: a merged network's units get back the statistics that averaging took."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.tracing.exporting import plain_attention
from roundweave.tasks.matching.units import find_units
from roundweave.tasks.merging.gallery import Blend, blended, score_blend
from roundweave.tasks.merging.repair import recompute_batch_norm, rescale, spread_of
from tests.tasks.matching.analysed import mlp
from tests.tasks.merging.by_hand import same_bits


def test_recomputed_statistics_are_those_of_the_examples() -> None:
    network = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Dropout(0.5), nn.Linear(4, 2))
    inputs = torch.randn(64, 3)
    recompute_batch_norm(network, inputs.split(32))
    hidden = network[0](inputs)
    norm = network[1]
    assert isinstance(norm, nn.BatchNorm1d)
    assert norm.running_mean is not None
    assert norm.running_var is not None
    assert torch.allclose(norm.running_mean, hidden.mean(0), atol=1e-6)
    halves = torch.stack([part.var(0) for part in hidden.split(32)]).mean(0)
    assert torch.allclose(norm.running_var, halves, atol=1e-6)
    assert norm.momentum == 0.1
    assert not network.training


@pytest.mark.parametrize("bias", [True, False])
def test_rescaled_units_vary_as_much_as_the_parents(bias: bool) -> None:
    one, other = (mlp(seed, 6, 20, 12, 3, bias=bias) for seed in range(2))
    inputs = torch.randn(500, 6)
    units = find_units(one, (inputs,))
    merged = copy.deepcopy(one)
    merged.load_state_dict(average([one.state_dict(), other.state_dict()], [1.0, 3.0]))
    head = {name: merged.state_dict()[name].clone() for name in merged.state_dict() if name.startswith("4.")}
    rescale(merged, [one, other], [1.0, 3.0], inputs, units)
    with torch.no_grad():
        for end in (1, 3):
            found, a, b = (
                spread_of(net[end - 1], net[:end](inputs))  # type: ignore[index]
                for net in (merged, one, other)
            )
            rows = slice(None) if bias else slice(1, None)  # without a bias only the deviation
            assert torch.allclose(found[rows], (a[rows] + 3 * b[rows]) / 4, atol=1e-4)
    assert all(torch.equal(merged.state_dict()[name], tensor) for name, tensor in head.items()), "outputs stay"
    assert not any(module._forward_hooks for net in (merged, one, other) for module in net.modules())


class Twice(nn.Module):
    """Its middle layer is called twice, or there is another one with its weight."""

    def __init__(self, tied: bool) -> None:
        super().__init__()
        self.first, self.middle, self.last = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 3)
        self.again = nn.Linear(8, 8) if tied else None
        if self.again:
            self.again.weight = self.middle.weight

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.middle(self.first(inputs).relu()).relu()
        return self.last((self.again or self.middle)(hidden).relu())


@pytest.mark.parametrize("tied", [False, True])
def test_a_layer_that_has_two_spreads_stays_as_it_is(tied: bool) -> None:
    torch.manual_seed(0)
    one, other = Twice(tied), Twice(tied)
    inputs = torch.randn(200, 6)
    units = find_units(one, (inputs,))
    assert "middle.weight" in {tensor for group in units.groups for tensor, axis, _ in units.members(group)}
    merged = copy.deepcopy(one)
    merged.load_state_dict(average([one.state_dict(), other.state_dict()], [1.0, 1.0]))
    before = merged.state_dict()["middle.weight"].clone()
    rescale(merged, [one, other], [1.0, 1.0], inputs, units)
    assert torch.equal(merged.state_dict()["middle.weight"], before)
    means = [spread_of(network.first, network.first(inputs))[1] for network in (merged, one, other)]
    assert torch.allclose(means[0], (means[1] + means[2]) / 2, atol=1e-5)
    itself = copy.deepcopy(one)
    rescale(itself, [one, one], [1.0, 1.0], inputs, units)
    assert torch.allclose(itself(inputs), one(inputs), atol=1e-5)


def test_a_network_without_hidden_layers_has_nothing_to_rescale() -> None:
    network = nn.Linear(3, 2)
    units = find_units(network, (torch.randn(2, 3),))
    with pytest.raises(UsageError, match="nothing to rescale"):
        rescale(network, [network, network], [0.5, 0.5], torch.randn(5, 3), units)


@pytest.mark.parametrize("examples", [250, 251, 450])
def test_no_number_of_examples_leaves_a_batch_of_one(gallery, written, examples) -> None:
    gallery = gallery("normed", examples=examples, blocks=1)
    _, places = written(gallery)
    assert score_blend(gallery, [Blend(places, (1, 1), repair=True)], 0) is not None


def test_a_parent_is_never_repaired(gallery, written) -> None:
    gallery = gallery("normed")
    states, places = written(gallery)
    found = blended(gallery, Blend(places, (0, 1), repair=True)).state_dict()
    assert same_bits(dict(found), states[1])


def test_a_layer_that_is_never_called_is_left_as_it_is() -> None:
    """Attention uses the weights of its projection without calling it."""
    torch.manual_seed(0)
    layers = [nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True) for _ in range(2)]
    networks = [nn.Sequential(nn.Linear(5, 8), layer, nn.Linear(8, 2)).eval() for layer in layers]
    inputs = torch.randn(20, 3, 5)
    units = find_units(networks[0], (inputs,))
    merged = copy.deepcopy(networks[0])
    with plain_attention():
        rescale(merged, networks, [1.0, 1.0], inputs, units)
    before, after = networks[0].state_dict(), merged.state_dict()
    assert torch.equal(after["1.self_attn.out_proj.weight"], before["1.self_attn.out_proj.weight"])
    assert not torch.equal(after["1.linear1.weight"], before["1.linear1.weight"])
