"""Named tensors, and the flat vectors that are sent, summed and stored: one vector for each dtype.

Records pickle their tensors as numpy arrays, which Dask sends without a copy. numpy has no bfloat16: its raw bits
are sent as uint16.
"""

from __future__ import annotations

import ctypes
import functools
import math
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import ShapeMismatch

Vectors = Mapping[str, torch.Tensor]
"""One contiguous vector, (element,), by the name of its logical dtype, such as ``{"float32": ...}``."""

Slots = Mapping[str, Vectors]
"""Vectors by the name of a slot: the carry of a partition, the extras of an update, or the memory of an apply."""


FLOAT8 = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz", "float8_e8m0fnu")

RAW = {"bfloat16": "uint16", "complex32": "uint32", **dict.fromkeys(FLOAT8, "uint8")}
"""Logical dtypes that numpy lacks, and the numpy dtype of their raw bits."""


UNSUMMED = (torch.uint16, torch.uint32, torch.uint64)
"""Integer dtypes for which torch implements hardly any arithmetic."""


def dtype_name(dtype: torch.dtype) -> str:
    """Return the name of a dtype: ``torch.float32`` gives ``"float32"``."""
    return str(dtype).removeprefix("torch.")


def is_dense(tensor: torch.Tensor) -> bool:
    """Tell whether a tensor stores a plain value per element: neither sparse, meta, nested nor quantised bits."""
    name = dtype_name(tensor.dtype)
    plain = tensor.layout == torch.strided and not (tensor.is_meta or tensor.is_nested or tensor.is_quantized)
    return plain and hasattr(np, RAW.get(name, name))


_memcmp = ctypes.CDLL(None).memcmp


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Tell whether two tensors have the same dtype, shape and bits. A NaN equals a NaN with the same bits."""
    if (one.dtype, one.shape) != (other.dtype, other.shape):
        return False
    first, second = (tensor.detach().reshape(-1).contiguous() for tensor in (one, other))
    if first.device.type == second.device.type == "cpu":  # torch takes four times as long
        places = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (first, second))
        return not _memcmp(*places, ctypes.c_size_t(first.nbytes))
    # Integers of the same size are compared four times as fast as bytes.
    kind = {2: torch.int16, 4: torch.int32, 8: torch.int64}.get(one.element_size(), torch.uint8)
    return torch.equal(first.view(kind), second.view(kind))


def differences(
    some: Mapping[str, torch.Tensor], others: Mapping[str, torch.Tensor]
) -> Iterator[tuple[str, float | None]]:
    """Return the tensors by name, ``(*shape)`` each, that differ in bits, and the largest absolute difference.

    The difference is 0 if only the bits differ, and inf if one of two numbers is not finite. It is None if nothing
    can be subtracted: a tensor is missing, or has another type or shape. Names of the first mapping come first.
    """
    for name in {**some, **others}:
        one, other = some.get(name), others.get(name)
        if one is None or other is None or (one.dtype, one.shape) != (other.dtype, other.shape):
            yield name, None
        elif not same_bits(one, other):
            left, right = (
                each.to(torch.complex128 if each.is_complex() else torch.float64) for each in (one, other)
            )
            same = (left == right) | (left.isnan() & right.isnan())
            apart = (left - right).abs().masked_fill(same, 0.0)
            yield name, apart.nan_to_num(nan=math.inf, posinf=math.inf).max().item()


def to_numpy(tensor: torch.Tensor) -> np.ndarray:
    """Return a contiguous CPU tensor as an array, without a copy; bfloat16 as raw bits in uint16."""
    raw = RAW.get(dtype_name(tensor.dtype))
    tensor = tensor.detach().contiguous()
    return (tensor.view(getattr(torch, raw)) if raw else tensor).numpy()


def shown_array(tensor: torch.Tensor) -> np.ndarray:
    """Return a tensor as an array of the same shape. bfloat16, which numpy lacks, becomes float32."""
    return (tensor.to(torch.float32) if tensor.dtype == torch.bfloat16 else tensor).numpy()


def little_bytes(array: np.ndarray) -> np.ndarray:
    """Return the elements of an array in C order as little-endian bytes, (byte,), without a copy if possible."""
    return np.ascontiguousarray(array, array.dtype.newbyteorder("<")).reshape(-1).view(np.uint8)


def from_numpy(array: np.ndarray, dtype: str) -> torch.Tensor:
    """Invert `to_numpy`: return a tensor of the logical dtype with the array's shape.

    The tensor shares the array's memory, unless the array is read-only or not contiguous.
    """
    if not (array.flags.writeable and array.flags.c_contiguous):
        array = np.array(array, order="C")
    tensor = torch.from_numpy(array)
    return tensor.view(getattr(torch, dtype)) if dtype in RAW else tensor


def let_go(tensor: torch.Tensor, value: float = 0.0) -> None:
    """Free the memory of a tensor.

    The tensor keeps its shape, and is `value` everywhere, or 0 if it is no float.
    """
    tensor.data = tensor.new_full((), value if tensor.is_floating_point() else 0).expand(tensor.shape)


def load_named(network: torch.nn.Module, tensors: Mapping[str, torch.Tensor]) -> None:
    """Load tensors by name into a network, each in the network's own shape.

    Some modules refuse a state dict without version numbers. Runs and checkpoint files do not store versions, so
    the versions of this network are added. Raises torch's `RuntimeError` if names or shapes differ.
    """
    versioned = OrderedDict(tensors)
    vars(versioned).update(vars(network.state_dict()))
    network.load_state_dict(versioned)


@dataclass(frozen=True)
class _Packed:
    """The pickled form of a tensor."""

    array: np.ndarray
    dtype: str


ALIGNMENT = 16
"""Tensors begin at multiples of this many bytes.

At other addresses, such as those of Dask, products have other bits.
"""


def _pack(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return _Packed(to_numpy(value), dtype_name(value.dtype))
    return {key: _pack(inner) for key, inner in value.items()} if isinstance(value, Mapping) else value


def _unpack(value: Any) -> Any:
    if isinstance(value, _Packed):
        tensor = from_numpy(value.array, value.dtype)
        return tensor.clone() if tensor.data_ptr() % ALIGNMENT else tensor
    return {key: _unpack(inner) for key, inner in value.items()} if isinstance(value, dict) else value


class Record:
    """The base of frozen dataclasses whose tensors are pickled as numpy arrays."""

    def __getstate__(self) -> dict[str, Any]:
        return {key: _pack(value) for key, value in self.__dict__.items()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update({key: _unpack(value) for key, value in state.items()})


def tensor_bytes(value: Any) -> int:
    """Return the bytes of a tensor, or of all tensors in a record or in nested mappings.

    >>> tensor_bytes({"loss_scale": {"float32": torch.zeros(2)}})
    8
    """
    match value:
        case torch.Tensor():
            return value.nbytes
        case Record():
            return tensor_bytes(vars(value))
        case Mapping():
            return sum(map(tensor_bytes, value.values()))
    return 0


@dataclass(frozen=True)
class TensorSpec:
    """The name, logical dtype (such as ``float32``) and shape of one tensor of a network."""

    name: str
    dtype: str
    shape: tuple[int, ...]

    @functools.cached_property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.shape)


Specs = Sequence[TensorSpec]


def vector_sizes(specs: Specs) -> dict[str, int]:
    """Return the number of elements of each dtype's vector."""
    totals: dict[str, int] = {}
    for spec in specs:
        totals[spec.dtype] = totals.get(spec.dtype, 0) + spec.size
    return totals


def specs_bytes(specs: Specs) -> int:
    """Return the bytes of all elements of some tensors."""
    return sum(size * getattr(torch, dtype).itemsize for dtype, size in vector_sizes(specs).items())


def check_sizes(specs: Specs, vectors: Vectors) -> None:
    """Raise `ShapeMismatch` if a vector (element,) is missing, unexpected or of another size."""
    expected = vector_sizes(specs)
    given = {name: vector.numel() for name, vector in vectors.items()}
    if given != expected:
        raise ShapeMismatch(f"expected vectors of {expected} elements, got {given}")


def empty_vectors(specs: Specs) -> dict[str, torch.Tensor]:
    """Return vectors (element,) for these specs, with uninitialised elements."""
    return {
        dtype: torch.empty(size, dtype=getattr(torch, dtype))
        for dtype, size in sorted(vector_sizes(specs).items())
    }


def by_path(groups: Mapping[str, Mapping[str, torch.Tensor]]) -> dict[str, torch.Tensor]:
    """Return tensors of any shapes by their path in the store, given those of each group by name."""
    return {f"{group}/{name}": tensor for group, named in groups.items() for name, tensor in named.items()}


def views(specs: Specs, vectors: Vectors) -> dict[str, torch.Tensor]:
    """Split vectors into named tensors that share the memory of the vectors.

    Args:
        specs: The tensors in the order of the vectors, such as `Layout.params`.
        vectors: One vector (element,) for each dtype.

    Returns:
        The tensors by name, in their own shapes. Writing to a tensor changes the vector.

    Raises:
        ShapeMismatch: A vector is missing, unexpected, or has another number of elements.

    Example:
        >>> specs = (TensorSpec("weight", "float32", (2, 2)), TensorSpec("bias", "float32", (2,)))
        >>> views(specs, {"float32": torch.arange(6.0)})["bias"]
        tensor([4., 5.])
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
    """Copy named tensors into flat vectors, the inverse of `views`.

    Args:
        specs: The tensors in the order of the vectors, such as `Layout.params`.
        tensors: The tensors by name, in their own shapes.

    Returns:
        One vector (element,) for each dtype.

    Raises:
        KeyError: A tensor of the specs is missing.

    Example:
        >>> specs = (TensorSpec("weight", "float32", (2, 2)), TensorSpec("bias", "float32", (2,)))
        >>> pack(specs, {"weight": torch.ones(2, 2), "bias": torch.zeros(2)})["float32"]
        tensor([1., 1., 1., 1., 0., 0.])
    """
    by_dtype = sorted(specs, key=lambda spec: spec.dtype)
    return {
        dtype: torch.cat([tensors[spec.name].detach().reshape(-1) for spec in group])
        for dtype, group in groupby(by_dtype, key=lambda spec: spec.dtype)
    }


def specs_of(tensors: Iterable[tuple[str, torch.Tensor]]) -> tuple[TensorSpec, ...]:
    """Return the specs of named tensors of any shapes, in the given order."""
    return tuple(TensorSpec(name, dtype_name(t.dtype), tuple(t.shape)) for name, t in tensors)
