"""Networks that ranks which share them would train wrongly: refused, or trained as the whole one is."""

from __future__ import annotations

import math
import re
from collections.abc import Callable

import pytest
import torch
from torch import nn

from storage.errors import ModelError, RoundFailed
from storage.values.state import State
from tasks.maps.local_steps import LocalSteps
from tasks.networks.reference import MODELS
from tests.tasks.compute.tensor_parallel.networks import examples_of, objective_of, off, tensor_parallel_of
from tests.tasks.sampled import sampled

STEPS = LocalSteps(local_steps=20, batch_size=7, lr=0.05)
UNITS = 12

Between = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def _drawn(network: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    return hidden + torch.randn(hidden.shape[-1])


def _kept(network: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Statistics of a batch, kept as BatchNorm keeps them."""
    with torch.no_grad():
        network.kept.mul_(0.9).add_(hidden.mean(), alpha=0.1)
    return hidden - network.kept


def _past(network: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Reads the weights of a layer beside its call."""
    return hidden / (1 + network.first.weight.norm()) if network.training else hidden


def _sloped(network: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient / gradient.norm())
    return hidden


BETWEEN: dict[str, Between] = {
    "root mean square": lambda n, h: h / (h.square().mean(-1, keepdim=True) + 1e-3).sqrt(),
    "the same in training": lambda n, h: (
        h / (h.square().mean(-1, keepdim=True) + 1e-3).sqrt() if n.training else h
    ),
    "winners": lambda n, h: h * (h >= h.topk(4).values[..., -1:]),
    "winners in training": lambda n, h: h * (h >= h.topk(4).values[..., -1:]) if n.training else h,
    "width in training": lambda n, h: h / math.sqrt(h.shape[-1]) if n.training else h,
    "width in scoring": lambda n, h: h if n.training else h / math.sqrt(h.shape[-1]),
    "softmax in training": lambda n, h: h.softmax(-1) if n.training else h,
    "sorted": lambda n, h: h.sort(-1).values,
    "added up": lambda n, h: h.cumsum(-1),
    "turned": lambda n, h: h.roll(1, -1),
    "weighed by place": lambda n, h: h * torch.arange(h.shape[-1]).to(h),
    "products of units": lambda n, h: (h[..., None] * h[..., None, :]).sum(-1),
    "largest": lambda n, h: h - h.amax(-1, keepdim=True),
    "half in training": lambda n, h: torch.where(torch.arange(h.shape[-1]) < 6, h, 0 * h) if n.training else h,
    "length without gradient": lambda n, h: h / (1 + h.detach().norm(dim=-1, keepdim=True)),
    "clipped length": lambda n, h: h / (h.norm(dim=-1, keepdim=True) / 20).clamp(min=1),
    "saturating": lambda n, h: h + (h - 30).relu().sum(-1, keepdim=True),
    "quantile": lambda n, h: h.clamp(max=h.detach().quantile(0.9)),
    "kept": _kept,
    "past": _past,
    "drawn by unit": _drawn,
    "dropped by width": lambda n, h: nn.functional.dropout(h, 1 / h.shape[-1], n.training),
    "length of a gradient": _sloped,
    "mean of the batch": lambda n, h: h - h.mean(0),
    "mixed examples": lambda n, h: (h + h.flip(0)) / 2 if n.training else h,
}


class Fooling(nn.Module):
    """A pair of layers that could be shared but for what is between them."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, kind: str):
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(inputs[0], UNITS), nn.Linear(UNITS, outputs)
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(BETWEEN[self.kind](self, self.first(inputs).relu()))


BEFORE: dict[str, Between] = {
    "mean of the batch": lambda n, h: h - h.mean(0),
    "the same in training": lambda n, h: h - h.mean(0) if n.training else h,
    "own norm": lambda n, h: (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt() if n.training else h,
    "own norm, kept": _kept,
    "mixed examples": lambda n, h: (h + h.flip(0)) / 2 if n.training else h,
    "drawn order": lambda n, h: (h + h[torch.randperm(len(h))]) / 2 if n.training else h,
    "count of examples": lambda n, h: h * len(h),
    "largest example": lambda n, h: h / (1 + h.detach().abs().amax()),
    "attention over examples": lambda n, h: (h @ h.T).softmax(-1) @ h,
    "first example": lambda n, h: h - h[:1],
}


class Joining(nn.Module):
    """A layer, and something over its examples, before a pair that can be shared."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, kind: str):
        super().__init__()
        self.kind, self.lead = kind, nn.Linear(inputs[0], 9)
        self.first, self.second = nn.Linear(9, UNITS), nn.Linear(UNITS, outputs)
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.first(BEFORE[self.kind](self, self.lead(inputs).tanh())).relu())


@pytest.fixture(autouse=True)
def known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(MODELS, "fooling", Fooling)
    monkeypatch.setitem(MODELS, "joining", Joining)


@pytest.mark.parametrize(("kind", "ranks"), sampled(3, BETWEEN, [2, 3]))
def test_ranks_take_the_steps_of_the_whole_network_or_none(kind: str, ranks: int) -> None:
    objective = objective_of("fooling", kind=kind)
    try:
        difference = off(objective, STEPS, ranks)
    except ModelError as error:
        assert re.search(
            "give another function|no linear layers whose units|torch.export cannot trace", str(error)
        )
        assert "\n" not in str(error)
    else:
        assert difference < 1e-12, kind


@pytest.mark.parametrize(("kind", "ranks"), sampled(3, BEFORE, [2, 3]))
def test_a_hybrid_takes_the_steps_of_the_whole_network_or_none(kind: str, ranks: int) -> None:
    objective = objective_of("joining", kind=kind)
    try:
        difference = off(objective, STEPS, ranks, ("first",), hybrid=True)
    except ModelError as error:
        assert "give another function" in str(error)
        assert "\n" not in str(error)
    else:
        assert difference < 1e-12, kind


def test_what_only_larger_weights_reach_is_found_when_a_step_is_compared() -> None:
    """Activations above 30 are added up over units, of which a rank has some; at first none is as large."""
    objective = objective_of("fooling", kind="saturating")
    group, state, inputs = (
        tensor_parallel_of(objective, STEPS, 2),
        objective.initial(),
        examples_of(objective, 8).inputs,
    )
    group.compare(objective, inputs, state)
    far = State({name: 50 * vector for name, vector in state.params.items()}, state.buffers, round=100)
    with pytest.raises(
        RoundFailed, match=r"^round 100: ranks that share units first train another network"
    ) as error:
        group.compare(objective, inputs, far)
    assert "\n" not in str(error.value)
