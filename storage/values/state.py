"""The values that pass between map, reduce and apply: layouts, states, updates, and matches of units."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import Annotated, Any

import torch
from pydantic import BeforeValidator, Field
from torch import nn

from roundweave.storage.values.tensors import Record, Specs, TensorSpec, Vectors, by_path, specs_of, views


def _members(row: Any) -> Any:
    """Return a JSON row ``[name, dtype, shape]`` as the members of a `TensorSpec`; anything else unchanged."""
    match row:
        case [name, dtype, [*shape]]:
            return {"name": name, "dtype": dtype, "shape": tuple(shape)}
    return row


def json_rows(specs: Specs) -> list[list[Any]]:
    """Return the specs as JSON rows ``[name, dtype, shape]``, which `Rows` reads."""
    return [[spec.name, spec.dtype, list(spec.shape)] for spec in specs]


def _pairs(aliases: Any) -> Any:
    return tuple(aliases.items()) if isinstance(aliases, dict) else aliases


MOST = 100_000
"""The most tensors of one kind (params, buffers or frozen). Each is stored in a folder of its own."""


Rows = Annotated[tuple[Annotated[TensorSpec, BeforeValidator(_members)], ...], Field(max_length=MOST)]


@dataclass(frozen=True)
class Layout:
    """The names, dtypes and shapes of a network's tensors, in the order of their elements in vectors.

    A vector (element,) of one dtype has the flattened tensors of that dtype, one after the other.

    Args:
        params: The trained parameters.
        buffers: The persistent buffers, and frozen parameters that the network itself changes, such as a moving
            average.
        frozen: The parameters that are not trained.
        aliases: Pairs of a further name of a tied tensor and the name under which the tensor is stored.

    Example:
        >>> Layout(params=(TensorSpec("weight", "float32", (3, 2)),)).params[0].size
        6
    """

    params: Rows
    buffers: Rows = ()
    frozen: Rows = ()
    aliases: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = ()

    def to_json(self) -> dict[str, Any]:
        """Return a JSON object from which `Schema.from_json` rebuilds the layout."""
        kinds = {"params": self.params, "buffers": self.buffers, "frozen": self.frozen}
        return {**{kind: json_rows(specs) for kind, specs in kinds.items()}, "aliases": dict(self.aliases)}


def layout_of(network: nn.Module, moving: Collection[str] = ()) -> Layout:
    """Return the place of each of a network's tensors in its vectors. Non-persistent buffers are not stored.

    `moving` are the names of frozen parameters that the network itself changes.
    """
    parameters = dict(network.named_parameters())
    persistent = network.state_dict(keep_vars=True)
    buffers = {name: buffer for name, buffer in network.named_buffers() if name in persistent}
    buffers |= {name: parameters.pop(name) for name in moving}
    first = {id(tensor): name for name, tensor in [*parameters.items(), *buffers.items()]}
    every = [*network.named_parameters(remove_duplicate=False), *network.named_buffers(remove_duplicate=False)]
    return Layout(
        params=specs_of((n, p) for n, p in parameters.items() if p.requires_grad),
        frozen=specs_of((n, p) for n, p in parameters.items() if not p.requires_grad),
        buffers=specs_of(buffers.items()),
        aliases=tuple((n, first[id(t)]) for n, t in every if first.get(id(t), n) != n),
    )


@dataclass(frozen=True)
class State(Record):
    """The network between two rounds, as flat vectors (element,), one for each dtype.

    Args:
        params: The trainable parameters. A `Layout` has the places of the tensors.
        buffers: Tensors that change but are no parameters, such as the statistics of BatchNorm.
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
        """Return every tensor of the state, in its own shape, by its path such as ``params/fc1.weight``.

        The tensors share the memory of the vectors.
        """
        groups = {
            "params": views(layout.params, self.params),
            "buffers": views(layout.buffers, self.buffers),
            "frozen": views(layout.frozen, self.frozen),
            **{f"memory/{slot}": views(layout.params, vectors) for slot, vectors in self.memory.items()},
        }
        return by_path(groups)


@dataclass(frozen=True)
class Match(Record):
    """The match of one partition's units by a reduce, by unit group (a set of interchangeable hidden units).

    `permutation`, (unit,), is int64: element i is the unit of the partition that was moved to place i. A mixture
    instead is float32, (unit, unit), with rows that sum to 1. `similarity`, (unit,), is the cosine between the
    weights of matched units. Units inside of other units, such as those of an attention head, have one more axis:
    (head, unit).
    """

    permutation: Mapping[str, torch.Tensor]
    similarity: Mapping[str, torch.Tensor]


OBSERVED = "updates/observed"
"""The path of the group with the tensors that maps observed for the reduce."""


@dataclass(frozen=True)
class Update(Record):
    """The result of a map for one partition, and the result of a reduce: vectors (element,) by dtype.

    Args:
        direction: The vector to subtract from the parameters: a gradient, or a pseudo-gradient, which is the
            parameters before local training minus those after.
        buffers: The network's buffers after local training.
        extras: Auxiliary vectors by name, reduced like the direction.
        weight: An integer, usually the number of examples.
        metrics: Numbers by name. Each is stored for the round and the partition.
        carry: The client state that the partition gets back in its next round.
        observed: Tensors for the reduce alone, in the specs that the map declares.
        matches: One match for each update that was given to a reduce that matches units.
        count: The number of accepted updates behind a reduced update.
        packed: The compressed direction that is sent in place of the direction; None sends the direction. It is
            not stored.

    Example:
        >>> update = rw.Update({"float32": torch.ones(7)}, weight=32, metrics={"train_loss": 0.7})
    """

    direction: Vectors
    buffers: Vectors = field(default_factory=dict)
    extras: Mapping[str, Vectors] = field(default_factory=dict)
    weight: int = 1
    metrics: Mapping[str, float] = field(default_factory=dict)
    carry: Mapping[str, Vectors] = field(default_factory=dict)
    observed: Vectors = field(default_factory=dict)
    matches: tuple[Match, ...] = ()
    count: int = 1
    packed: Any = field(default=None, repr=False, compare=False)

    def to_send(self) -> Update:
        """Return the update without its direction if that is packed."""
        return self if self.packed is None else replace(self, direction={})

    def received(self) -> Update:
        """Return the update with its direction alone, unpacked if only the packed one was sent."""
        if self.packed is None:
            return self
        return replace(self, direction=self.direction or self.packed.unpack(), packed=None)
