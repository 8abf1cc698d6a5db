"""Where each tensor of a network lies in its vectors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from storage.values.tensors import TensorSpec


def _members(row: Any) -> Any:
    """A row of JSON, ``[name, dtype, shape]``, as the members of a spec."""
    match row:
        case [name, dtype, [*shape]]:
            return {"name": name, "dtype": dtype, "shape": tuple(shape)}
    return row


def _pairs(aliases: Any) -> Any:
    return tuple(aliases.items()) if isinstance(aliases, dict) else aliases


MOST = 100_000
"""Tensors of a kind: each is a folder of its own."""


Rows = Annotated[tuple[Annotated[TensorSpec, BeforeValidator(_members)], ...], Field(max_length=MOST)]


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a network lies in its vectors.

    `params` train; `frozen` parameters do not; `buffers` are the persistent ones; `aliases` maps the
    further names of tied tensors to the one under which they are kept.
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
