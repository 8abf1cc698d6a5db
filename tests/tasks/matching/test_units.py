"""The units that are found in every network of the zoo, that little else is pinned, and what is refused."""

from __future__ import annotations

import fnmatch
import math
import traceback
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from roundweave.storage.errors import ModelError
from roundweave.tasks.matching.check import check_function
from roundweave.tasks.matching.groups import UnitGroup
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.analysed import analysed, built, networks
from tests.tasks.matching.expected import MAY_BE_PINNED
from tests.tasks.merging import mine

FIRST = ["mlp", "cnn", "shufflenet", "resnext", "resnet", "lstm", "gru_both_ways", "gpt_unbind", "mlp_mixer"]
FIRST += ["tied_autoencoder", "sorted_units", "stack_roll_pad", "transformers_llama_eager", "transformers_mixtral"]
"""One of each way in which units are flattened, grouped, padded, stacked, tied, shared or fixed."""


@pytest.mark.parametrize("name", networks(*FIRST))
def test_permuting_units_leaves_the_function_alone_and_covers_no_element_twice(name):
    model, inputs, units = analysed(name)
    assert check_function(model, inputs, units) <= 1e-10
    for tensor, shape in units.tensors.items():
        counts = torch.zeros(shape, dtype=torch.long)
        for piece in units.pieces:
            if piece.tensor == tensor:
                piece.view(counts).add_(1)
        assert counts.max() <= 1


@pytest.mark.parametrize("name", networks(*FIRST))
def test_a_tensor_without_a_free_axis_is_listed_with_its_reason(name):
    _, _, units = analysed(name)
    free = {piece.tensor for piece in units.pieces if any(piece.groups)}
    counted = {tensor for tensor, shape in units.tensors.items() if math.prod(shape) > 1}
    assert set(units.pinned) == counted - free
    assert units.coverage == pytest.approx(len(free) / len(counted))
    assert sum(reason == "output" for reason in units.pinned.values()) <= 1
    for tensor, reason in units.pinned.items():
        allowed = MAY_BE_PINNED.get(name, {}) | {"*bias": "output"}
        expected = [says for pattern, says in allowed.items() if fnmatch.fnmatch(tensor, pattern)]
        assert expected, f"{tensor} should be free, not pinned by: {reason}"
        assert expected[0] in reason


@pytest.mark.parametrize("name", networks("gpt", "lstm"))  # tied, and flat
def test_the_module_is_left_as_it_was(name):
    model, inputs = built(name)
    model.train()
    model.register_forward_hook(lambda module, arguments, output: None)
    before = [_photograph(model), torch.get_rng_state().tolist()]
    values = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    find_units(model, inputs)
    assert [_photograph(model), torch.get_rng_state().tolist()] == before
    assert all(torch.equal(tensor, values[name]) for name, tensor in model.state_dict().items())


def _photograph(model: nn.Module) -> list[object]:
    """The modes, the hooks, and which tensors are whose, with what they want of autograd."""
    hooks = [{n: dict(h) for n, h in vars(module).items() if n.endswith("hooks")} for module in model.modules()]
    tensors = [(name, id(t), t.requires_grad, t.grad) for name, t in model.state_dict(keep_vars=True).items()]
    return [[module.training for module in model.modules()], hooks, tensors]


def test_the_units_of_a_multilayer_perceptron():
    _, _, units = analysed("mlp")
    assert units.groups == {"0": UnitGroup("0", 16), "2": UnitGroup("2", 12)}
    assert units.members("0") == [("0.weight", 0, 0), ("0.bias", 0, 0), ("2.weight", 1, 0)]
    assert units.coverage == pytest.approx(5 / 6)


def test_a_module_without_parameters_is_refused():
    with pytest.raises(ModelError, match="ReLU has no parameters"):
        find_units(nn.ReLU(), (torch.randn(2, 4),))


class Positions(nn.Module):
    """Adds positions to its inputs, of which it can read eight at most."""

    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(4, 6), nn.Linear(6, 3)
        self.position = nn.Parameter(torch.randn(8, 6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.head((self.body(x) + self.position[: x.shape[1]]).relu())


@pytest.mark.parametrize("length", [1, 3, 8])
def test_positions_beyond_the_example_inputs_stay_in_their_places(length):
    units = find_units(Positions(), (torch.randn(2, length, 4),))
    assert {name: (group.size, group.parents) for name, group in units.groups.items()} == {"position": (6, ())}
    order = units.random(torch.Generator().manual_seed(0))
    network = Positions().state_dict()
    moved = units.permute(network, order)
    assert torch.equal(moved["position"], network["position"][:, order["position"]])


@pytest.mark.parametrize(("training", "alike"), [(True, False), (False, False), (False, True)])
def test_what_a_call_does_not_reach_is_permuted_as_in_training_or_pins_what_it_may_read(training, alike):
    network, inputs = mine.Autoencoder(training).double().eval(), torch.randn(5, 6).double()
    units = find_units(network, (inputs,), lambda name: alike)
    pinned = "spread.weight may read them" in str(units.pinned)
    assert pinned == (not training and not alike)
    assert sorted(group.size for group in units.groups.values()) == ([20] if pinned else [3, 9, 9, 20])
    wanted = network(inputs), network.spreads(inputs).sort().values  # the spreads are in the code's order
    order = units.random(torch.Generator().manual_seed(0))
    network.load_state_dict(units.permute(network.state_dict(), order))
    torch.testing.assert_close(network(inputs), wanted[0])
    if not alike:
        torch.testing.assert_close(network.spreads(inputs).sort().values, wanted[1])


class InVain(mine.Autoencoder):
    def forward(self, inputs: Tensor) -> Tensor:
        self.spreads(inputs)
        return super().forward(inputs)


def test_a_result_that_is_not_used_reads_units_and_keeps_its_own_order():
    units = find_units(InVain(), (torch.randn(5, 6),))
    assert ("spread.weight", 1, 0) in units.members("body")
    assert units.pinned["spread.bias"] == "its result is not used"


class DataDependent(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)

    def forward(self, x: Tensor) -> Tensor:
        y = self.body(x)
        return y if y.sum() > 0 else -y


class Cache:
    """What a decoder keeps of what it has read, and no tensor."""


class Decoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.config = SimpleNamespace(use_cache=True)
        self.body = nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 3))

    def forward(self, x: Tensor) -> dict[str, object]:
        logits = self.body(x)
        return {"logits": logits, "past": Cache()} if self.config.use_cache else {"logits": logits}


def test_a_decoder_is_analysed_without_its_cache():
    model, inputs = Decoder(), (torch.randn(2, 4),)
    units = find_units(model, inputs)
    assert [group.size for group in units.groups.values()] == [6]
    assert check_function(model, inputs, units) <= 1e-10
    assert model.config.use_cache


def test_other_objects_among_the_outputs_are_refused():
    model = Decoder()
    model.config = None
    model.forward = lambda x: (model.body(x), Cache())
    with pytest.raises(ModelError, match=r"torch\.export cannot trace Decoder: .*Cache"):
        find_units(model, (torch.randn(2, 4),))


def test_a_module_that_cannot_be_exported_is_refused_in_one_line_and_nothing_besides(capfd):
    with pytest.raises(ModelError, match=r"torch\.export cannot trace DataDependent: ") as caught:
        find_units(DataDependent(), (torch.randn(2, 4),))
    assert capfd.readouterr() == ("", "")
    assert str(caught.value).endswith(f"of {__file__})")
    shown = "".join(traceback.format_exception(caught.value))
    assert "GuardOnDataDependent" in shown and "def forward(self, arg0_1" not in shown
    assert shown.count("\n") < 30
