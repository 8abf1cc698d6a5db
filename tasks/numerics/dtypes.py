"""The dtypes in which vectors are summed, and how large ones are computed."""

from __future__ import annotations

from collections.abc import Callable

import torch

PIECE = 1 << 17
"""How many elements of vectors are computed at once: so few that a processor's cache holds them."""

ACCUMULATORS = {"float64": torch.float64}
"""The types in which vectors are summed, by their dtype; float32 for all other dtypes."""


def accumulator(dtype: str) -> torch.dtype:
    """The type in which vectors of a dtype are summed."""
    return ACCUMULATORS.get(dtype, torch.float32)


def is_float(dtype: str) -> bool:
    """Whether a dtype, such as ``bfloat16``, is a floating-point type."""
    return bool(getattr(torch, dtype).is_floating_point)


def in_pieces(function: Callable[..., torch.Tensor], *vectors: torch.Tensor) -> torch.Tensor:
    """What a function of each element alone makes of vectors (element,), computed a piece at a time.

    It has the bits of one call. Large vectors take half the time, and no more memory than the result.
    """
    elements = len(vectors[0])
    if elements <= PIECE:
        return function(*vectors)
    pieces = zip(*(vector.split(PIECE) for vector in vectors), strict=True)
    first = function(*next(pieces))
    whole = first.new_empty(elements)
    parts = iter(whole.split(PIECE))
    next(parts).copy_(first)
    for part, piece in zip(parts, pieces, strict=True):
        part.copy_(function(*piece))
    return whole
