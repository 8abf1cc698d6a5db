"""Layers as products of matrices: which of a network's are found, and each with the inputs of a whole run."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from roundweave.tasks.matching.solving.grams import layers_of
from roundweave.tasks.matching.solving.layers import find_layers
from roundweave.tasks.matching.solving.walking import Walk
from roundweave.tasks.matching.tapping import Taps
from roundweave.tasks.matching.tracing.exporting import exported, plain_attention
from tests.tasks.matching.analysed import analysed, built, networks

CONVOLUTIONS = (nn.Conv1d, nn.Conv2d, nn.Conv3d)


@pytest.mark.filterwarnings("ignore:Using padding='same' with even kernel")
@settings(deadline=None, max_examples=20)
@given(
    sizes=st.lists(st.integers(1, 3), min_size=1, max_size=3),
    padding=st.sampled_from(["same", "valid", 0, 1, 2]),
    stride=st.integers(1, 2),
    dilation=st.integers(1, 2),
    groups=st.sampled_from([1, 2, 4]),
    bias=st.booleans(),
)
def test_a_convolution_is_the_product_of_its_matrix_and_its_rows(
    sizes, padding, stride, dilation, groups, bias
) -> None:
    kind, form = CONVOLUTIONS[len(sizes) - 1], {"dilation": dilation, "groups": groups, "bias": bias}
    convolution = kind(4, 8, sizes, 1 if padding == "same" else stride, padding, **form).double()
    inputs = torch.randn(3, 4, *[7] * len(sizes), dtype=torch.float64)
    (layer,) = layers_of(convolution, (inputs,)).values()
    matrix = layer.matrix(convolution.state_dict())
    (rows,) = layer.rows(inputs)
    found = (rows @ matrix.mT).movedim(0, 1)  # (example and place, group, out)
    with torch.no_grad():
        wanted = convolution(inputs).movedim(1, -1)
    torch.testing.assert_close(found.reshape(wanted.shape), wanted)


def test_many_rows_come_in_parts(monkeypatch) -> None:
    convolution, inputs = nn.Conv2d(2, 3, 3), torch.randn(5, 2, 6, 6)
    (layer,) = layers_of(convolution, (inputs,)).values()
    (whole,) = layer.rows(inputs)
    monkeypatch.setattr("roundweave.tasks.matching.solving.layers.MOST_NUMBERS", 2 * 36 * 9 * 2)
    parts = list(layer.rows(inputs))
    assert len(parts) == 3
    assert torch.equal(torch.cat(parts, 1), whole)


@pytest.mark.parametrize("name", networks("gpt", "transformers_gpt2_sdpa"))  # the last: turned
def test_tensors_and_matrices_of_any_network_are_one_another(name) -> None:
    network, inputs, _ = analysed(name)
    state = network.state_dict()
    program = exported(network, inputs)
    for weight, layer in layers_of(network, inputs).items():
        back = layer.tensors(layer.matrix(state), state)
        assert set(back) == {weight, layer.bias} - {None}
        assert all(torch.equal(tensor, state[each]) for each, tensor in back.items())
        (values,) = Taps.at(program, [layer.inputs]).values(state, inputs).values()
        assert {rows.shape[2] for rows in layer.rows(values)} == {layer.matrix(state).shape[2]}


def test_the_projections_of_attention_are_layers_and_a_tied_head_is_none() -> None:
    found = layers_of(nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), (torch.randn(3, 5, 8),))
    names = ["self_attn.in_proj", "self_attn.out_proj.", "linear1.", "linear2."]
    assert [*found] == [f"{name}weight" if name.endswith(".") else f"{name}_weight" for name in names]
    names = [*layers_of(*built("transformers_gpt2_sdpa"))]
    assert names[:2] == [f"model.transformer.h.0.attn.{each}.weight" for each in ("c_attn", "c_proj")]
    assert not any("wte" in name or "lm_head" in name for name in names)


def test_a_weight_that_is_used_twice_is_of_no_layer() -> None:
    class Twice(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.again, self.once = nn.Linear(4, 4), nn.Linear(4, 2)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return self.once(self.again(self.again(inputs).relu()))

    assert list(layers_of(Twice(), (torch.randn(2, 4),))) == ["once.weight"]


@pytest.mark.parametrize("name", networks("unet"))  # values that are read late
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
