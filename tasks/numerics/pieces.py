"""Large vectors: the types in which they are summed, and how they are computed a piece at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch


def accumulator(dtype: str) -> torch.dtype:
    """Return the type in which vectors of a dtype are summed: float32, except for float64."""
    return torch.float64 if dtype == "float64" else torch.float32


def is_float(dtype: str) -> bool:
    """Tell whether a dtype, such as ``bfloat16``, is a floating-point type."""
    return bool(getattr(torch, dtype).is_floating_point)


def is_finite(tensor: torch.Tensor) -> bool:
    """Tell whether all numbers of a tensor are finite. If their sum is, they are; it takes a tenth of the time."""
    return math.isfinite(tensor.sum().item()) or bool(tensor.isfinite().all())


PIECE = 1 << 17
"""How many numbers are computed at once: so few that a processor's cache holds them."""

NARROWEST = 1 << 11
"""A piece of many vectors has at least so many elements of each, as every piece takes some 50 µs besides."""

ALIGNED = 1 << 6
"""Pieces are multiples of so many elements, and none is shorter: torch adds the last few of a row otherwise."""

THREADS = 8
"""At most so many threads compute pieces: with more, the memory is what they wait for."""


ALONE = 1 << 5
"""Fewer pieces are computed by this thread alone, which takes less time than to begin others.

Those of a single vector are computed at once: what is read once gains nothing by a cache.
"""


def in_pieces(function: Callable[..., torch.Tensor], *vectors: torch.Tensor) -> torch.Tensor:
    """Compute a function of each element alone of vectors (*, element), piece by piece: a vector (element,).

    It has the bits of one call, whatever the number of threads that compute the pieces of a large vector. These
    need no more memory than the result.
    """
    *others, elements = vectors[0].shape
    size = max(PIECE // math.prod(others) // ALIGNED * ALIGNED, NARROWEST)
    if elements < size + ALIGNED or (not others and elements < ALONE * size):
        return function(*vectors)
    firsts = range(0, elements - ALIGNED + 1, size)

    @torch.no_grad()
    def piece(first: int) -> torch.Tensor:
        return function(*(vector[..., first : end(first)] for vector in vectors))

    def end(first: int) -> int:
        return elements if first == firsts[-1] else first + size

    whole = torch.empty(elements, dtype=(start := piece(0)).dtype)
    whole[: end(0)] = start

    def fill(firsts: Iterable[int]) -> None:
        for first in firsts:
            whole[first : end(first)] = piece(first)

    rest, threads = firsts[1:], min(THREADS, os.cpu_count() or 1)
    if len(rest) < ALONE:
        fill(rest)
        return whole
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, (rest[thread::threads] for thread in range(threads))))
    return whole
