"""The values that pass between map, reduce and apply: states, updates, and matches of units."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from roundweave.storage.values.layout import Layout
from roundweave.storage.values.tensors import Record, Vectors, views


@dataclass(frozen=True)
class State(Record):
    """The network between two rounds, as flat vectors (element,), one for each dtype.

    Args:
        params: The trainable parameters; a `Layout` says which tensors lie where.
        buffers: What is no parameter but changes, such as the statistics of BatchNorm.
        frozen: The parameters that are not trained.
        memory: The slots of the outer optimizer, each with vectors like `params`.
        round: The number of the round that ended with this state.

    Example:
        >>> state = rw.State({"float32": torch.zeros(7)})
    """

    params: Vectors
    buffers: Vectors = field(default_factory=dict)
    frozen: Vectors = field(default_factory=dict)
    memory: Mapping[str, Vectors] = field(default_factory=dict)
    round: int = 0

    def named(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Every tensor of the state, each of its own shape, by its path in the store, as ``params/fc1.weight``.

        The tensors share the memory of the vectors.
        """
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
    """How a reduce matched the units of one partition, by unit group (a set of interchangeable hidden units).

    `permutation`, (unit,), is int64: element i is the unit of the partition that was brought to place i. A
    mixture instead is float32, (unit, unit), with rows that sum to 1. `similarity`, (unit,), is the cosine between
    the weights of matched units. Units inside of other units, such as those of an attention head, have an axis
    more: (head, unit).
    """

    permutation: Mapping[str, torch.Tensor]
    similarity: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Update(Record):
    """What a map sends back for one partition, and what a reduce returns, as vectors (element,) by dtype.

    Args:
        direction: What is to be subtracted from the parameters: a gradient, or a pseudo-gradient, which is the
            parameters before local training minus those after.
        buffers: The network's buffers after local training.
        extras: Auxiliary vectors by name, reduced like the direction.
        weight: An integer, usually the number of examples.
        metrics: Numbers by name, each of which is stored for the round and the partition.
        carry: The client state that the partition gets back in its next round.
        matches: A match for each update that was given to a reduce that matches units.
        count: How many accepted updates a reduced one was made of.

    Example:
        >>> update = rw.Update({"float32": torch.ones(7)}, weight=32, metrics={"train_loss": 0.7})
    """

    direction: Vectors
    buffers: Vectors = field(default_factory=dict)
    extras: Mapping[str, Vectors] = field(default_factory=dict)
    weight: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    carry: Mapping[str, Vectors] = field(default_factory=dict)
    matches: tuple[Match, ...] = ()
    count: int = 1
