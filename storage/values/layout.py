"""Where each tensor of a network lies in its vectors."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from storage.values.tensors import TensorSpec


@dataclass(frozen=True)
class Layout:
    """Where each tensor of a network lies in its vectors.

    `params` train; `frozen` parameters do not; `buffers` are the persistent ones; `aliases` maps the
    further names of tied tensors to the one under which they are kept.
    """

    params: tuple[TensorSpec, ...]
    buffers: tuple[TensorSpec, ...] = ()
    frozen: tuple[TensorSpec, ...] = ()
    aliases: tuple[tuple[str, str], ...] = ()

    def to_json(self) -> dict[str, Any]:
        """A JSON object from which `from_json` rebuilds the layout."""
        kinds = {"params": self.params, "buffers": self.buffers, "frozen": self.frozen}
        named = {kind: [[s.name, s.dtype, list(s.shape)] for s in specs] for kind, specs in kinds.items()}
        return {**named, "aliases": dict(self.aliases)}

    @classmethod
    def from_json(cls, value: Mapping[str, Any]) -> Layout:
        """The inverse of `to_json`."""

        def specs(kind: str) -> tuple[TensorSpec, ...]:
            return tuple(TensorSpec(name, dtype, tuple(shape)) for name, dtype, shape in value[kind])

        aliases = tuple(value["aliases"].items())
        return cls(specs("params"), specs("buffers"), specs("frozen"), aliases)
