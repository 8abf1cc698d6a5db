"""What passes between map, reduce and apply: the layout of a network's tensors, the state, the update.

Tensors travel, are summed and are stored as one contiguous vector per dtype; a `Layout` gives the
named views. Records pickle their tensors as numpy buffers, which Dask moves without a copy and which
carry bfloat16 as its 16 raw bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import Any

import numpy as np
import torch

from storage.errors import ShapeMismatch

Vectors = Mapping[str, torch.Tensor]
"""One contiguous vector per logical dtype name, such as ``{"float32": ...}``."""

RAW = {"bfloat16": "uint16"}
"""Logical dtypes that numpy lacks, and the dtype that carries their bits."""


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` -> ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory as an array (no copy); bfloat16 as its bits in uint16."""
    raw = RAW.get(dtype_name(tensor.dtype))
    tensor = tensor.detach().contiguous()
    return (tensor.view(getattr(torch, raw)) if raw else tensor).numpy()


def from_numpy(array: np.ndarray, dtype: str) -> torch.Tensor:
    """The inverse of `to_numpy`: a tensor of the logical dtype over the array's memory."""
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = np.array(array, order="C")
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype in RAW else tensor


@dataclass(frozen=True)
class _Packed:
    """A tensor on its way through pickle."""

    array: np.ndarray
    dtype: str


def _pack(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Packed(to_numpy(value), dtype_name(value.dtype))
    return {key: _pack(item) for key, item in value.items()} if isinstance(value, Mapping) else value


def _unpack(value: Any) -> Any:
    if isinstance(value, _Packed):
        return from_numpy(value.array, value.dtype)
    return {key: _unpack(item) for key, item in value.items()} if isinstance(value, dict) else value


class Record:
    """A frozen dataclass whose tensors pickle as numpy buffers."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: _pack(value) for key, value in self.__dict__.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({key: _unpack(value) for key, value in state.items()})


@dataclass(frozen=True)
class TensorSpec:
    """Name, logical dtype and shape of one tensor of a network."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @property
    def size(self) -> int:
        """Number of elements."""
        return math.prod(self.shape)


Specs = Sequence[TensorSpec]


def sizes(specs: Specs) -> dict[str, int]:
    """Elements of each dtype's vector."""
    totals: dict[str, int] = {}
    for spec in specs:
        totals[spec.dtype] = totals.get(spec.dtype, 0) + spec.size
    return totals


def views(specs: Specs, vectors: Vectors) -> dict[str, torch.Tensor]:
    """Named tensors that share the vectors' memory.

    Raises `ShapeMismatch` when a vector is missing or has another number of elements.
    """
    expected = sizes(specs)
    found = {name: vector.numel() for name, vector in vectors.items()}
    if found != expected:
        raise ShapeMismatch(f"expected vectors of {expected} elements, got {found}")
    offsets = dict.fromkeys(expected, 0)
    named = {}
    for spec in specs:
        start = offsets[spec.dtype]
        named[spec.name] = vectors[spec.dtype][start : start + spec.size].view(spec.shape)
        offsets[spec.dtype] = start + spec.size
    return named


def pack(specs: Specs, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy named tensors into one vector per dtype, in the order of the specs."""
    by_dtype = sorted(specs, key=lambda spec: spec.dtype)
    return {
        dtype: torch.cat([tensors[spec.name].detach().reshape(-1) for spec in group])
        for dtype, group in groupby(by_dtype, key=lambda spec: spec.dtype)
    }


def specs_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[TensorSpec, ...]:
    """The specs of named tensors, in order."""
    return tuple(TensorSpec(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors)


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


@dataclass(frozen=True)
class State(Record):
    """The network between two rounds; `memory` holds the outer optimizer's slots, shaped as `params`."""

    params: Vectors
    buffers: Vectors = field(default_factory=dict)
    frozen: Vectors = field(default_factory=dict)
    memory: Mapping[str, Vectors] = field(default_factory=dict)
    round: int = 0

    def named(self, layout: Layout) -> dict[str, torch.Tensor]:
        """Every tensor under its path in the store, such as ``params/fc1.weight``, frozen ones included."""
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

    `permutation` tells which of its units came to each place, or, as a row-stochastic matrix, in what mixture;
    `similarity` is the cosine between the matched units' weights, a number a unit.
    """

    permutation: Mapping[str, torch.Tensor]
    similarity: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class Update(Record):
    """What one partition sends back, and what a reduce returns.

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
