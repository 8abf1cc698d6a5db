"""The layout of a network: the names, dtypes and shapes of its tensors, and so their places in flat vectors."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field
from torch import nn

from roundweave.storage.values.tensors import TensorSpec, specs_of


def _members(row: Any) -> Any:
    """A JSON row ``[name, dtype, shape]`` as the members of a `TensorSpec`; anything else unchanged."""
    match row:
        case [name, dtype, [*shape]]:
            return {"name": name, "dtype": dtype, "shape": tuple(shape)}
    return row


def _pairs(aliases: Any) -> Any:
    return tuple(aliases.items()) if isinstance(aliases, dict) else aliases


MOST = 100_000
"""The most tensors of one kind (params, buffers or frozen). Each is stored in a folder of its own."""


Rows = Annotated[tuple[Annotated[TensorSpec, BeforeValidator(_members)], ...], Field(max_length=MOST)]


@dataclass(frozen=True)
class Layout:
    """The names, dtypes and shapes of a network's tensors, in the order in which vectors concatenate them.

    `params` are trained and `frozen` parameters are not. `buffers` are the persistent ones, and those frozen
    parameters that the network itself changes, such as a moving average of others. `aliases` are pairs
    that map a further name of a tied tensor to the name under which it is stored. In a vector (element,) of one
    dtype lie the flattened tensors of that dtype, one after the other.

    Example:
        >>> Layout(params=(TensorSpec("weight", "float32", (3, 2)),)).params[0].size
        6
    """

    params: Rows
    buffers: Rows = ()
    frozen: Rows = ()
    aliases: Annotated[tuple[tuple[str, str], ...], BeforeValidator(_pairs)] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `Schema.from_json` rebuilds the layout."""
        kinds = {"params": self.params, "buffers": self.buffers, "frozen": self.frozen}
        named = {kind: [[s.name, s.dtype, list(s.shape)] for s in specs] for kind, specs in kinds.items()}
        return {**named, "aliases": dict(self.aliases)}


def layout_of(network: nn.Module, moving: Collection[str] = ()) -> Layout:
    """The place of each of a network's tensors in its vectors; non-persistent buffers are not stored.

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
