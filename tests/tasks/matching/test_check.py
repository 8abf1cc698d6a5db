"""The check notices what is not interchangeable."""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from storage.errors import UnitsUnsound
from tasks.matching.check import check_function, function_error
from tasks.matching.groups import UnitGroups
from tests.tasks.matching.analysed import NAMES, analysed


@dataclasses.dataclass(frozen=True)
class OneSwap(UnitGroups):
    """Units that are said to be in one tensor only, and a permutation that swaps two of one group there."""

    group: str = ""

    def random(self, generator: torch.Generator) -> dict[str, Tensor]:
        table = self.identity()[self.group]
        return {self.group: torch.cat([table[..., :2].flip(-1), table[..., 2:]], dim=-1)}


@pytest.mark.parametrize("name", [name for name in NAMES if name != "transformers_bert_eager"])
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
    with pytest.raises(UnitsUnsound, match="permuting the units of Sequential changes its outputs") as caught:
        check_function(model, inputs, doctored)
    assert "\n" not in str(caught.value)
