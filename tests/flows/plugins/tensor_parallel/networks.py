"""Networks that a group can share and some that it cannot, and what one machine and a group make of them."""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Callable, Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import roundweave as rw
from roundweave.flows.plugins.tensor_parallel.finding import find_shares
from roundweave.flows.plugins.tensor_parallel.layers import ShareObjective
from roundweave.flows.plugins.tensor_parallel.mapper import TensorParallel
from roundweave.flows.plugins.tensor_parallel.one_process import as_ranks
from roundweave.flows.plugins.tensor_parallel.shares import Shares
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned

CLASSES = 5


def chain(inputs: tuple[int, ...], outputs: int, widths: tuple[int, ...] = (16, 16), dropout: float = 0.0):
    """Linear layers of these widths, with ReLU and dropout between them."""
    layers: list[nn.Module] = []
    for last, width in pairwise((inputs[0], *widths)):
        layers += [nn.Linear(last, width), nn.ReLU(), nn.Dropout(dropout)]
    return nn.Sequential(*layers, nn.Linear((inputs[0], *widths)[-1], outputs))


def alexnet(inputs, outputs: int, norm: bool = False, dropout: float = 0.0, early: float = 0.0) -> nn.Module:
    """Convolutions and pools, and then three linear layers, as Krizhevsky et al. (2012), with few units."""
    middle = [nn.BatchNorm2d(6)] if norm else [nn.Dropout(early)]
    return nn.Sequential(
        *(nn.Conv2d(inputs[0], 6, 3, padding=1), *middle, nn.ReLU(), nn.MaxPool2d(2)),
        *(nn.Conv2d(6, 7, 3, padding=1), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten()),
        *(nn.Linear(7 * 4, 19), nn.ReLU(), nn.Dropout(dropout)),
        *(nn.Linear(19, 13), nn.ReLU(), nn.Dropout(dropout), nn.Linear(13, outputs)),
    )


class Encoder(nn.Module):
    """torch's own encoder layer between two linear ones."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, norm_first: bool = False, dropout: float = 0.0):
        super().__init__()
        self.widen = nn.Linear(inputs[1], 12)
        self.layer = nn.TransformerEncoderLayer(12, 4, 22, dropout, batch_first=True, norm_first=norm_first)
        self.head = nn.Linear(12, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.layer(self.widen(inputs)).mean(1))


class Decoder(nn.Module):
    """torch's own decoder layer, which attends to itself and to what was read."""

    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__()
        self.widen = nn.Linear(inputs[1], 12)
        self.layer = nn.TransformerDecoderLayer(12, 4, 22, 0.0)
        self.head = nn.Linear(12, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.widen(inputs).transpose(0, 1)
        future = nn.Transformer.generate_square_subsequent_mask(3, dtype=hidden.dtype)
        return self.head(self.layer(hidden[:3], hidden, tgt_mask=future, tgt_is_causal=True).mean(0))


class Packed(nn.Module):
    """Attention of which one linear layer makes queries, keys and values, told apart in the way named."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, way: str = "split"):
        super().__init__()
        self.way, self.heads, self.size, self.inner = way, 4, 3, 12
        self.widen, self.packed = nn.Linear(inputs[1], 12), nn.Linear(12, 36)
        self.norm, self.out, self.head = nn.LayerNorm(12), nn.Linear(12, 12), nn.Linear(12, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        hidden = self.norm(self.widen(inputs))
        query, key, value = self.parts(hidden)
        mixed = nn.functional.scaled_dot_product_attention(query, key, value).transpose(1, 2)
        width = hidden.shape[-1] if self.way == "width of the input" else self.inner
        return self.head((hidden + self.out(mixed.reshape(*hidden.shape[:2], width))).mean(1))

    def parts(self, hidden: torch.Tensor) -> list[torch.Tensor]:
        """Each (examples, heads, time, width of a head)."""
        packed, shape = self.packed(hidden), hidden.shape[:2]
        if self.way == "view":
            return list(packed.view(*shape, 3, self.heads, self.size).permute(2, 0, 3, 1, 4))
        pieces = packed.split(self.inner, -1) if self.way == "split" else packed.chunk(3, -1)
        return [piece.view(*shape, self.heads, -1).transpose(1, 2) for piece in pieces]


UNITS = 12
Act = Callable[[nn.Module, torch.Tensor], torch.Tensor]


def kept(network: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Statistics of a batch, kept as BatchNorm keeps them."""
    with torch.no_grad():
        network.kept.mul_(0.9).add_(hidden.mean(), alpha=0.1)
    return hidden - network.kept


def past(network: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    """Reads the weights of a layer beside its call."""
    return hidden / (1 + network.first.weight.norm())


def sloped(network: nn.Module, hidden: torch.Tensor) -> torch.Tensor:
    if hidden.requires_grad:
        hidden.register_hook(lambda gradient: gradient / gradient.norm())
    return hidden


BETWEEN: dict[str, Act] = {
    "width of the whole": lambda n, h: h.view(-1, UNITS),
    "past without gradients": lambda n, h: h if torch.is_grad_enabled() else past(n, h),
    "root mean square": lambda n, h: h / (h.square().mean(-1, keepdim=True) + 1e-3).sqrt(),
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
    "kept": kept,
    "past": lambda n, h: past(n, h) if n.training else h,
    "drawn by unit": lambda n, h: h + torch.randn(h.shape[-1]),
    "dropped by width": lambda n, h: nn.functional.dropout(h, 1 / h.shape[-1], n.training),
    "length of a gradient": sloped,
    "mean of the batch": lambda n, h: h - h.mean(0),
    "mixed examples": lambda n, h: (h + h.flip(0)) / 2 if n.training else h,
    "normed": lambda n, h: nn.functional.layer_norm(h, h.shape[-1:]),
}
"""What is between two layers; of some, units cannot be shared, and how they show it differs."""


class Fooling(nn.Module):
    """A pair of layers that could be shared but for what is between them."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, kind: str):
        super().__init__()
        self.kind, self.first, self.second = kind, nn.Linear(inputs[0], UNITS), nn.Linear(UNITS, outputs)
        self.register_buffer("kept", torch.zeros(()))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(BETWEEN[self.kind](self, self.first(inputs).relu()))


BEFORE: dict[str, Act] = {
    "mean of the batch": lambda n, h: h - h.mean(0),
    "the same in training": lambda n, h: h - h.mean(0) if n.training else h,
    "own norm": lambda n, h: (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt() if n.training else h,
    "own norm, kept": kept,
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


class Half(nn.Module):
    """A pair of layers that can be shared, after one that cannot."""

    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__()
        self.mixed, self.plain = Fooling(inputs, 6, "width of the whole"), chain((6,), outputs, (30,))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.plain(self.mixed(inputs))


class Beside(nn.Module):
    """Two pairs of layers, of which one draws after the other has ended, and then draws that all have."""

    def __init__(self, inputs: tuple[int, ...], outputs: int, width: int = 7, dropout: float = 0.5):
        super().__init__()
        self.one, self.other = nn.Linear(inputs[0], width), nn.Linear(inputs[0], width)
        self.first, self.second = nn.Linear(width, 6), nn.Linear(width, 6)
        self.dropout, self.norm, self.head = nn.Dropout(dropout), nn.LayerNorm(6), nn.Linear(6, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        one, other = self.one(inputs).relu(), self.other(inputs).relu()
        early = self.first(one)
        return self.head(self.dropout(self.norm(early + self.second(self.dropout(other)))))


class Again(nn.Module):
    """Two pairs of layers whose activations are computed again where they are needed, or kept.

    Those computed again may be of `parts`: of the first layer with its dropout.
    """

    def __init__(self, inputs, outputs: int, again: bool = True, parts: bool = False, dropout: float = 0.5):
        super().__init__()
        self.again, self.parts = again, parts
        self.first, self.second = (chain(inputs, inputs[0], (9,), dropout) for _ in range(2))
        self.dropout, self.norm, self.head = nn.Dropout(dropout), nn.LayerNorm(inputs[0]), nn.Linear(10, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for part in (self.first, self.second):
            start, end = (part[:-1], part[-1]) if self.parts else (part, nn.Identity())
            made = checkpoint(start, inputs, use_reentrant=False) if self.again else start(inputs)
            inputs = self.dropout(self.norm(end(made)))
        return self.head(inputs)


class Python(nn.Module):
    """A pair of layers that is left out now and then, as Python's generator says, and numpy's."""

    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__()
        self.pair, self.norm, self.head = chain(inputs, 10, (12,)), nn.LayerNorm(10), nn.Linear(10, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        for _ in range(3):
            if not self.training or random.random() + np.random.random() < 1:
                inputs = self.norm(inputs + self.pair(inputs))
        return self.head(inputs)


class Tied(nn.Module):
    """A pair of layers that can be shared, and a large weight that is used in two places."""

    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__()
        self.plain, self.one, self.other = chain(inputs, 12, (9,)), nn.Linear(12, 12), nn.Linear(12, 12)
        self.other.weight = self.one.weight
        self.head = nn.Linear(12, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.head(self.other(self.one(self.plain(inputs)).softmax(-1)))


class Deep(nn.Module):
    """A linear layer and its normalisation, and then linear layers that can be shared."""

    def __init__(self, inputs, outputs: int, batch_norm: bool = True, widths: tuple[int, ...] = (11,)):
        super().__init__()
        self.lead = nn.Linear(inputs[0], 14)
        self.norm = nn.BatchNorm1d(14) if batch_norm else nn.LayerNorm(14)
        self.rest = chain((14,), outputs, widths)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.rest(self.norm(self.lead(inputs)))


NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    **{"chain": chain, "alexnet": alexnet, "encoder": Encoder, "decoder": Decoder},
    **{"half": Half, "packed": Packed, "tied": Tied, "deep": Deep, "beside": Beside, "again": Again},
    **{"python": Python, "fooling": Fooling, "joining": Joining},
}
SHAPES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("encoder", "decoder", "attending", "packed"), (4, 3)),
    **{"alexnet": (2, 8, 8), "gpt": (6,)},
}


def objective_of(model: str, dtype: str = "float64", **options: object) -> Objective:
    """The objective of a network by name."""
    spec = ModelSpec(model, SHAPES.get(model, (10,)), CLASSES, dtype, 0, json.dumps(options))
    return Objective(spec, "cross_entropy")


def examples_of(objective: Objective, count: int = 24, seed: int = 1) -> rw.Examples:
    """Inputs drawn at random, tokens for a gpt, with labels."""
    generator, classes = torch.Generator().manual_seed(seed), objective.model.outputs
    shape = (count, *objective.model.inputs)
    if objective.model.model == "gpt":
        tokens = torch.randint(0, classes, shape, generator=generator)
        return rw.Examples(tokens, tokens.roll(-1, 1))
    inputs = torch.randn(shape, generator=generator).to(getattr(torch, objective.model.dtype))
    return rw.Examples(inputs, torch.randint(0, classes, (count,), generator=generator))


def tensor_parallel_of(objective: Objective, ranks: int, *how: Any, **more: Any) -> TensorParallel:
    """The mapper of a group, bound to an objective."""
    return TensorParallel(ranks=ranks, shares=shares_of(objective, ranks, *how, **more))


@functools.cache
def shares_of(objective: Objective, ranks: int, units: tuple[str, ...] = (), hybrid: bool = False) -> Shares:
    return find_shares(objective, examples_of(objective, 4).inputs, ranks, units, hybrid)


def mapped(
    map: rw.Map, objective: Objective, seed: int = 3, state: rw.State | None = None, by: Mapper | None = None
) -> rw.Update:
    """The update of a map, as rounds compute it `by` a mapper."""
    with pinned(seed, threads=1):
        (update,) = (by or Mapper())(
            map, objective, state or objective.initial(), [(examples_of(objective), {}, seed)]
        )
    return update


def each_of(group: TensorParallel, inner: rw.Map, objective: Objective, seed: int = 3) -> list[rw.Update]:
    """What each rank makes of its share."""
    shares, examples = group.known_shares, examples_of(objective)

    def of_rank(rank: Communicator) -> rw.Update:
        share = ShareObjective.of(objective, shares, rank)
        return inner(share, shares.state(objective.initial(), rank.rank), examples, {}, seed)

    with pinned(seed, threads=1):
        return as_ranks(shares.ranks, of_rank)


def off(objective: Objective, inner: rw.Map, ranks: int, *how: Any, **more: Any) -> float:
    """The largest difference of directions, buffers and losses between a group and one machine."""
    group = tensor_parallel_of(objective, ranks, *how, **more)
    one, other = mapped(inner, objective), mapped(inner, objective, by=group)
    pairs = [(one.direction[dtype], other.direction[dtype]) for dtype in one.direction]
    pairs += [(one.buffers[dtype], other.buffers[dtype]) for dtype in one.buffers]
    loss = abs(one.metrics["train_loss"] - other.metrics["train_loss"])
    return max([loss, *((a - b).abs().max().item() for a, b in pairs)])
