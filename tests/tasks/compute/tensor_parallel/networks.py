"""Networks that a group can share and some that it cannot, and what one machine and a group make of them."""

from __future__ import annotations

import functools
import json
import random
from collections.abc import Callable, Mapping

import numpy as np
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from roundweave.storage.values.state import State, Update
from roundweave.tasks.algorithms.algebra import Map
from roundweave.tasks.compute.communicator import Communicator
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.compute.tensor_parallel.finding import find_shares
from roundweave.tasks.compute.tensor_parallel.layers import ShareObjective
from roundweave.tasks.compute.tensor_parallel.mapper import TensorParallel
from roundweave.tasks.compute.tensor_parallel.one_process import as_ranks
from roundweave.tasks.compute.tensor_parallel.shares import Shares
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.numerics.pinning import pinned

CLASSES = 5


def chain(inputs: tuple[int, ...], outputs: int, widths: tuple[int, ...] = (16, 16), dropout: float = 0.0):
    """Linear layers of these widths, with ReLU and dropout between them."""
    layers: list[nn.Module] = []
    last = inputs[0]
    for width in widths:
        layers += [nn.Linear(last, width), nn.ReLU(), nn.Dropout(dropout)]
        last = width
    return nn.Sequential(*layers, nn.Linear(last, outputs))


def alexnet(
    inputs: tuple[int, ...], outputs: int, norm: bool = False, dropout: float = 0.0, early: float = 0.0
) -> nn.Module:
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


class Between(nn.Module):
    """Two linear layers, and between them what the subclass puts there."""

    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__()
        self.first, self.second = nn.Linear(inputs[0], 12), nn.Linear(12, outputs)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.second(self.between(self.first(inputs)))

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        raise NotImplementedError


class Views(Between):
    """Knows how many units there are."""

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        return hidden.view(-1, 12).relu()


class Normed(Between):
    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__(inputs, outputs)
        self.norm = nn.LayerNorm(12)

    def between(self, hidden: torch.Tensor) -> torch.Tensor:
        return self.norm(hidden)


class Past(Between):
    """Reads the weights of a layer where no gradients are wanted, as torch's fused encoder layers do."""

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        if torch.is_grad_enabled():
            return self.second(self.first(inputs).relu())
        hidden = nn.functional.linear(inputs, self.first.weight, self.first.bias).relu()
        return nn.functional.linear(hidden, self.second.weight, self.second.bias)


class Half(nn.Module):
    """A pair of layers that can be shared, after one that cannot."""

    def __init__(self, inputs: tuple[int, ...], outputs: int):
        super().__init__()
        self.mixed, self.plain = Views(inputs, 6), chain((6,), outputs, (30,))

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

    def __init__(
        self, inputs: tuple[int, ...], outputs: int, again: bool = True, parts: bool = False, dropout: float = 0.5
    ):
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

    def __init__(
        self, inputs: tuple[int, ...], outputs: int, batch_norm: bool = True, widths: tuple[int, ...] = (11,)
    ):
        super().__init__()
        self.lead = nn.Linear(inputs[0], 14)
        self.norm = nn.BatchNorm1d(14) if batch_norm else nn.LayerNorm(14)
        self.rest = chain((14,), outputs, widths)

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        return self.rest(self.norm(self.lead(inputs)))


NETWORKS: Mapping[str, Callable[..., nn.Module]] = {
    **{"chain": chain, "alexnet": alexnet, "encoder": Encoder, "decoder": Decoder},
    **{"half": Half, "packed": Packed, "tied": Tied, "deep": Deep, "beside": Beside, "again": Again},
    **{"python": Python, "views": Views, "normed": Normed, "past": Past},
}
SHAPES: Mapping[str, tuple[int, ...]] = {
    **dict.fromkeys(("encoder", "decoder", "attending", "packed"), (4, 3)),
    **{"alexnet": (2, 8, 8), "gpt": (6,)},
}


def objective_of(model: str, dtype: str = "float64", **options: object) -> Objective:
    """The objective of a network by name."""
    spec = ModelSpec(model, SHAPES.get(model, (10,)), CLASSES, dtype, 0, json.dumps(options))
    return Objective(spec, "cross_entropy")


def examples_of(objective: Objective, count: int = 24) -> Examples:
    """Inputs drawn at random, tokens for a gpt, with labels."""
    generator = torch.Generator().manual_seed(1)
    shape = (count, *objective.model.inputs)
    if objective.model.model == "gpt":
        tokens = torch.randint(0, CLASSES, shape, generator=generator)
        return Examples(tokens, tokens.roll(-1, 1))
    inputs = torch.randn(shape, generator=generator).to(getattr(torch, objective.model.dtype))
    return Examples(inputs, torch.randint(0, CLASSES, (count,), generator=generator))


def tensor_parallel_of(
    objective: Objective, inner: Map, ranks: int, units: tuple[str, ...] = (), hybrid: bool = False
) -> TensorParallel:
    """A map that a group does, bound to an objective."""
    return TensorParallel(inner, ranks=ranks, shares=shares_of(objective, ranks, units, hybrid))


@functools.cache
def shares_of(objective: Objective, ranks: int, units: tuple[str, ...] = (), hybrid: bool = False) -> Shares:
    return find_shares(objective, examples_of(objective, 4).inputs, ranks, units, hybrid)


def mapped(map: Map | Mapper, objective: Objective, seed: int = 3, state: State | None = None) -> Update:
    """The update of a map, as rounds compute it."""
    mapper = map if isinstance(map, Mapper) else Mapper(map)
    with pinned(seed, threads=1):
        (update,) = mapper(objective, state or objective.initial(), [(examples_of(objective), {}, seed)])
    return update


def each_of(group: TensorParallel, objective: Objective, seed: int = 3) -> list[Update]:
    """What each rank makes of its share."""
    shares, examples = group.known_shares, examples_of(objective)

    def of_rank(rank: Communicator) -> Update:
        share = ShareObjective.of(objective, shares, rank)
        return group.map(share, shares.state(objective.initial(), rank.rank), examples, {}, seed)

    with pinned(seed, threads=1):
        return as_ranks(shares.ranks, of_rank)


def off(objective: Objective, inner: Map, ranks: int, units: tuple[str, ...] = (), hybrid: bool = False) -> float:
    """The largest difference of directions, buffers and losses between a group and one machine."""
    one, other = (
        mapped(inner, objective),
        mapped(tensor_parallel_of(objective, inner, ranks, units, hybrid), objective),
    )
    pairs = [(one.direction[dtype], other.direction[dtype]) for dtype in one.direction]
    pairs += [(one.buffers[dtype], other.buffers[dtype]) for dtype in one.buffers]
    loss = abs(one.metrics["train_loss"] - other.metrics["train_loss"])
    return max([loss, *((a - b).abs().max().item() for a, b in pairs)])
