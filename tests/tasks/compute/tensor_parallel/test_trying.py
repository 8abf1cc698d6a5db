"""Shares that give another function, another gradient or other draws are found out."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from storage.errors import ModelError
from tasks.compute.tensor_parallel.shares import Shares
from tasks.compute.tensor_parallel.trying import is_sound
from tasks.networks.reference import MODELS
from tests.tasks.compute.tensor_parallel.networks import examples_of, objective_of, shares_of


class Single(nn.Linear):
    """Takes single precision alone."""

    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__(inputs[0], outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if inputs.dtype != torch.float32:
            raise TypeError("of float32 only")
        return super().forward(inputs)


def tried(change: dict[str, object], model: str = "chain", hybrid: bool = False) -> bool:
    objective = objective_of(model)
    shares: Shares = shares_of(objective, 2, ("3",) if model == "chain" else (), hybrid)
    return is_sound(objective, examples_of(objective, 4).inputs, replace(shares, **change))


def test_what_is_found_is_sound() -> None:
    assert tried({}) and tried({}, "encoder") and tried({}, "alexnet", hybrid=True)


@pytest.mark.parametrize(
    ("change", "model", "hybrid"),
    [
        ({"column": ()}, "chain", False),  # gradients of its inputs would be those of the rank's units
        ({"row": ()}, "chain", False),  # so would outputs
        ({"heads": ()}, "encoder", False),
        ({"before": frozenset()}, "alexnet", True),  # gradients would be those of the rank's examples
    ],
)
def test_shares_with_a_fault_are_not(change: dict[str, object], model: str, hybrid: bool) -> None:
    assert not tried(change, model, hybrid)


def test_a_network_that_has_no_float64_cannot_be_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "single", Single)
    objective, shares = objective_of("single", "float32"), shares_of(objective_of("chain"), 2)
    with pytest.raises(ModelError, match="Single cannot be tried in float64: TypeError: of float32 only"):
        is_sound(objective, examples_of(objective).inputs, shares)
