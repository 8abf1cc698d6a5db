"""The check notices what is not interchangeable."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor, nn

from roundweave.storage.errors import ModelError, UnitsUnsound
from roundweave.tasks.matching.check import check_function, function_error
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.analysed import analysed, networks

NOTICED = ["cnn", "lstm", "gpt", "transformers_llama_eager"]
"""Normalised, recurrent, tied, and with keys that heads share."""


@dataclasses.dataclass(frozen=True)
class OneSwap(UnitGroups):
    """Units that are said to be in one tensor only, and a permutation that swaps two of one group there."""

    group: str = ""

    def random(self, generator: torch.Generator) -> dict[str, Tensor]:
        table = self.identity()[self.group]
        return {self.group: torch.cat([table[..., :2].flip(-1), table[..., 2:]], dim=-1)}


@pytest.mark.parametrize(
    "name", [each for each in networks(*NOTICED) if each.values != ("transformers_bert_eager",)]
)
def test_units_swapped_in_one_tensor_only_are_noticed(name):
    model, inputs, units = analysed(name)
    for group in list(units.groups)[:2]:
        matrices = {tensor for tensor, *_ in units.members(group) if len(units.tensors[tensor]) > 1}
        assert matrices
        for tensor in sorted(matrices)[:3]:
            fields = {field.name: getattr(units, field.name) for field in dataclasses.fields(units)}
            pieces = tuple(piece for piece in units.pieces if piece.tensor == tensor)
            swapped = OneSwap(**fields | {"pieces": pieces, "aliases": {}}, group=group)
            assert function_error(model, inputs, swapped) > 1e-6, tensor


def test_units_that_are_not_interchangeable_are_refused():
    model, inputs, units = analysed("mlp")
    doctored = dataclasses.replace(units, pieces=units.pieces[:1])
    with pytest.raises(UnitsUnsound, match="permuting the units of Sequential changes its outputs"):
        check_function(model, inputs, doctored)


class Biased(nn.Module):
    """Heads with biases that are looked up once for evaluation, as LeViT has them."""

    def __init__(self):
        super().__init__()
        self.values, self.out = nn.Linear(4, 12), nn.Linear(12, 5)
        self.biases = nn.Parameter(torch.randn(3, 2))
        self.kept: list[Tensor] = []

    def train(self, mode: bool = True):
        self.kept = []
        return super().train(mode)

    def forward(self, x: Tensor) -> Tensor:
        if self.training or not self.kept:
            self.kept = [self.biases[:, [0, 1, 1, 0]]]
        heads = self.values(x).unflatten(-1, (3, 4))
        return self.out((heads * self.kept[0]).flatten(1).relu())


def test_what_a_network_keeps_for_evaluation_raises_no_alarm():
    model, inputs = Biased().eval(), (torch.randn(2, 4),)
    with torch.no_grad():
        model(*inputs)
    kept = model.kept
    units = find_units(model, inputs)
    assert check_function(model, inputs, units) <= 1e-10
    assert model.kept is kept
    assert ("biases", 0, 0) in units.members("biases")


def test_what_cannot_be_computed_in_float64_is_refused_in_one_line():
    model = nn.Sequential(nn.Linear(4, 8), nn.Linear(8, 4))
    model.register_forward_hook(lambda module, given, output: torch._grouped_mm(output, output.T))
    units = find_units(nn.Sequential(*model), (torch.randn(4, 4),))
    with pytest.raises(ModelError, match="Sequential cannot be checked in float64: RuntimeError: "):
        check_function(model, (torch.randn(4, 4),), units)


class Referring(nn.Module):
    """Keeps a value that it computed with gradients: torch does not copy such."""

    def __init__(self):
        super().__init__()
        self.body = nn.Linear(4, 3)
        self.seen = self.body.weight * 2

    def forward(self, x: Tensor) -> Tensor:
        return self.body(x)


def test_a_network_that_cannot_be_copied_is_refused_in_one_line():
    with pytest.raises(ModelError, match="Referring cannot be copied: RuntimeError: "):
        find_units(Referring(), (torch.randn(2, 4),))
