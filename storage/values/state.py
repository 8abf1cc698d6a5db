"""What passes between map, reduce and apply: the state, the update, and how units were matched."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from storage.values.layout import Layout
from storage.values.tensors import Record, Vectors, views


@dataclass(frozen=True)
class State(Record):
    """The network between two rounds, vectors (element,) by dtype.

    `memory` holds the outer optimizer's slots, shaped as `params`.
    """

    params: Vectors
    buffers: Vectors = field(default_factory=dict)
    frozen: Vectors = field(default_factory=dict)
    memory: Mapping[str, Vectors] = field(default_factory=dict)
    round: int = 0

    def named(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Every tensor, (*shape), under its path in the store, such as ``params/fc1.weight``, also frozen ones."""
        groups = {
            "params": (layout.params, self.params),
            "buffers": (layout.buffers, self.buffers),
            "frozen": (layout.frozen, self.frozen),
            **{f"memory/{slot}": (layout.params, vectors) for slot, vectors in self.memory.items()},
        }
        return {
            f"{group}/{name}": tensor
            for group, (specs, vectors) in groups.items()
            for name, tensor in views(specs, vectors).items()
        }


@dataclass(frozen=True)
class Match(Record):
    """How a reduce matched one partition's units, by group of interchangeable units.

    `permutation`, (unit,), tells which of its units came to each place, or, as a row-stochastic matrix,
    (unit, unit), in what mixture; `similarity`, (unit,), is the cosine between the matched units' weights.
    Units that depend on others, as those of a head, have those before: (head, unit).
    """

    permutation: Mapping[str, torch.Tensor]
    similarity: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Update(Record):
    """What one partition sends back, and what a reduce returns; vectors (element,) by dtype.

    `direction` is something to subtract from the parameters: a gradient, or start minus arrived.
    `buffers` are the values arrived at; `extras` are further named vectors, reduced like the direction.
    `weight` is an integer, as a rule the number of examples. `carry` stays with the partition. `matches` is what a
    reduce that matches units tells of each update that it was given.
    """

    direction: Vectors
    buffers: Vectors = field(default_factory=dict)
    extras: Mapping[str, Vectors] = field(default_factory=dict)
    weight: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    carry: Mapping[str, Vectors] = field(default_factory=dict)
    matches: tuple[Match, ...] = ()
