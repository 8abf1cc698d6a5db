"""Tensors by name, and as they travel, are summed and are stored: one contiguous vector per dtype.

Records pickle their tensors as numpy buffers, which Dask moves without a copy and which carry bfloat16 as its
16 raw bits.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from storage.errors import ShapeMismatch

Vectors = Mapping[str, torch.Tensor]
"""One contiguous vector, (element,), per logical dtype name, such as ``{"float32": ...}``."""


RAW = {"bfloat16": "uint16"}
"""Logical dtypes that numpy lacks, and the dtype that carries their bits."""


UNSUMMED = (torch.uint16, torch.uint32, torch.uint64)
"""Types of integers that torch hardly computes with."""


def dtype_name(dtype: torch.dtype) -> str:
    """``torch.float32`` -> ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def is_dense(tensor: torch.Tensor) -> bool:
    """Whether it has a value at each place of memory of its own: no sparse, meta, nested or quantized tensor."""
    return tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Whether two tensors, (*shape), are of one dtype and shape, and equal to the bit; so is a NaN to itself."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    first, second = (tensor.detach().reshape(-1).contiguous().view(torch.uint8) for tensor in (one, other))
    return torch.equal(first, second)


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """The tensor's memory, (*shape), as an array of that shape (no copy); bfloat16 as its bits in uint16."""
    raw = RAW.get(dtype_name(tensor.dtype))
    tensor = tensor.detach().contiguous()
    return (tensor.view(getattr(torch, raw)) if raw else tensor).numpy()


def little_bytes(array: np.ndarray) -> np.ndarray:
    """The array's elements in C order as little-endian bytes, (byte,); no copy where they lie so."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def from_numpy(array: np.ndarray, dtype: str) -> torch.Tensor:
    """The inverse of `to_numpy`: a tensor of the logical dtype over the array's memory, of the same shape."""
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = np.array(array, order="C")
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype in RAW else tensor


def load_named(network: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load named tensors, of the network's shapes, where files left the versions of its modules out.

    Some modules refuse a state without, so it gets those of this network. Raises torch's `RuntimeError` where
    names or shapes differ.
    """
    versioned = OrderedDict(tensors)
    vars(versioned).update(vars(network.state_dict()))
    network.load_state_dict(versioned)


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


def check_sizes(specs: Specs, vectors: Vectors) -> None:
    """Raise `ShapeMismatch` when a vector, (element,), is missing or has another number of elements."""
    expected = sizes(specs)
    given = {name: vector.numel() for name, vector in vectors.items()}
    if given != expected:
        raise ShapeMismatch(f"expected vectors of {expected} elements, got {given}")


def empty_vectors(specs: Specs) -> dict[str, torch.Tensor]:
    """Vectors, (element,), whose elements are not set."""
    return {dtype: torch.empty(size, dtype=getattr(torch, dtype)) for dtype, size in sorted(sizes(specs).items())}


def views(specs: Specs, vectors: Vectors) -> dict[str, torch.Tensor]:
    """Tensors by name, (*shape) each, that share the memory of the vectors, (element,).

    Raises `ShapeMismatch` when a vector is missing or has another number of elements.
    """
    check_sizes(specs, vectors)
    offsets = dict.fromkeys(vectors, 0)
    named = {}
    for spec in specs:
        start = offsets[spec.dtype]
        named[spec.name] = vectors[spec.dtype][start : start + spec.size].view(spec.shape)
        offsets[spec.dtype] = start + spec.size
    return named


def pack(specs: Specs, tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy named tensors, (*shape), into one vector per dtype, (element,), in the order of the specs."""
    by_dtype = sorted(specs, key=lambda spec: spec.dtype)
    return {
        dtype: torch.cat([tensors[spec.name].detach().reshape(-1) for spec in group])
        for dtype, group in groupby(by_dtype, key=lambda spec: spec.dtype)
    }


def specs_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[TensorSpec, ...]:
    """The specs of named tensors, (*shape), in order."""
    return tuple(TensorSpec(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors)


@dataclass(frozen=True, eq=False)
class LazyTensors(Mapping[str, torch.Tensor]):
    """Named tensors, (*shape) each, that are read or computed each time they are asked for and not kept."""

    names: tuple[str, ...]
    read: Callable[[str], torch.Tensor]

    def __getitem__(self, name: str) -> torch.Tensor:
        if name not in self.names:
            raise KeyError(name)
        return self.read(name)

    def __contains__(self, name: object) -> bool:
        return name in self.names

    def __iter__(self) -> Iterator[str]:
        return iter(self.names)

    def __len__(self) -> int:
        return len(self.names)
