"""A run that layers stop gives each the inputs of a whole run, and reads tensors when it comes to them."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave.tasks.matching.solving.layers import find_layers
from roundweave.tasks.matching.solving.walking import Walk
from roundweave.tasks.matching.tapping import Taps
from roundweave.tasks.matching.tracing.trace import exported, plain_attention
from tests.tasks.matching.analysed import analysed, networks


@pytest.mark.parametrize("name", networks("unet", "gpt"))  # values that are read late, and attention
def test_each_layer_has_the_inputs_of_a_whole_run(name) -> None:
    network, inputs, _ = analysed(name)
    program = exported(network, inputs)
    state, layers = network.state_dict(), find_layers(program)
    walk = Walk(program, inputs, state)
    with torch.no_grad(), plain_attention():
        for layer in layers.values():
            found = walk.inputs(layer).clone()
            assert torch.equal(found, Taps.at(program, [layer.inputs]).values(state, inputs)[layer.inputs])


def test_a_tensor_that_is_replaced_before_its_layer_is_read_anew() -> None:
    network, inputs = nn.Sequential(nn.Linear(2, 2, bias=False), nn.Linear(2, 1)), torch.randn(3, 2)
    program = exported(network, inputs)
    state, (first, second) = dict(network.state_dict()), find_layers(program).values()
    walk = Walk(program, [inputs], state)
    with torch.no_grad():
        assert torch.equal(walk.inputs(first), inputs)
        state["0.weight"] = 2 * torch.eye(2)
        assert torch.equal(walk.inputs(second), 2 * inputs)
