"""The networks of the zoo with their units, analysed once for all that only look at them; permuted copies."""

from __future__ import annotations

import copy
import functools
import itertools
from typing import Any

import pytest
import torch
from torch import nn

from roundweave.tasks.matching.check import randomise
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.matching.units import find_units
from tests.tasks.matching.zoo import TRANSFORMERS, ZOO, Member

State = dict[str, torch.Tensor]
NAMES = [*ZOO, *TRANSFORMERS]


def networks(*first: str) -> list[Any]:
    """All networks as parameters; the first suite has those that are named, each for a reason of its own."""
    assert {*first} <= {*NAMES}
    return [pytest.param(name, marks=[] if name in first else pytest.mark.thorough) for name in NAMES]


def built(name: str) -> Member:
    if name in TRANSFORMERS:
        pytest.importorskip("transformers")
    return (ZOO | TRANSFORMERS)[name]()


@functools.cache
def analysed(name: str) -> tuple[nn.Module, tuple[torch.Tensor, ...], UnitGroups]:
    model, inputs = built(name)
    return model, inputs, find_units(model, inputs)


def scrambled(name: str) -> tuple[UnitGroups, State, State, State]:
    """Units, a network whose units all differ, a permuted copy, and the permutation."""
    model, _, units = analysed(name)
    model = copy.deepcopy(model)
    randomise(model, torch.Generator().manual_seed(3))
    order = units.random(torch.Generator().manual_seed(5))
    return units, model.state_dict(), units.permute(model.state_dict(), order), order


def mlp(seed: int, *widths: int, bias: bool = True) -> nn.Module:
    torch.manual_seed(seed)
    layers = [layer for a, b in itertools.pairwise(widths) for layer in (nn.Linear(a, b, bias), nn.ReLU())]
    return nn.Sequential(*layers[:-1])


def copies(count: int, noise: float = 0.0) -> tuple[nn.Module, UnitGroups, list[State]]:
    """Permuted copies of one network; the first is the network itself."""
    network = mlp(0, 10, 24, 16, 4)
    units = find_units(network, (torch.randn(20, 10),))
    states = [network.state_dict()]
    for seed in range(1, count):
        order = units.random(torch.Generator().manual_seed(seed))
        state = units.permute(network.state_dict(), order)
        states.append({name: tensor + noise * torch.randn_like(tensor) for name, tensor in state.items()})
    return network, units, states
