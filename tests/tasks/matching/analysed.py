"""The networks of the zoo with their units, analysed once for all tests that only look at them."""

from __future__ import annotations

import functools

import pytest
import torch
from torch import nn

from tasks.matching.groups import UnitGroups
from tasks.matching.units import find_units
from tests.tasks.matching.zoo import TRANSFORMERS, ZOO, Member

NAMES = [*ZOO, *(f"transformers_{name}" for name in TRANSFORMERS)]


def built(name: str) -> Member:
    if name in ZOO:
        return ZOO[name]()
    pytest.importorskip("transformers")
    return TRANSFORMERS[name.removeprefix("transformers_")]()


@functools.cache
def analysed(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], UnitGroups]:
    model, inputs = built(name)
    return model, inputs, find_units(model, inputs)
