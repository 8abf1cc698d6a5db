"""What cannot be exported is refused."""

from __future__ import annotations

import traceback
from types import SimpleNamespace

import pytest
import torch
from torch import Tensor, nn

from roundweave.storage.errors import ModelError
from roundweave.tasks.matching.check import check_function
from roundweave.tasks.matching.units import find_units


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
