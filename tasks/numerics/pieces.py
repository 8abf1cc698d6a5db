"""Large vectors, computed a piece at a time."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor

import torch

PIECE = 1 << 17
"""How many numbers are computed at once: so few that a processor's cache holds them."""

NARROWEST = 1 << 11
"""A piece of many vectors has at least so many elements of each, as every piece takes some 50 µs besides."""

THREADS = 8
"""At most so many threads compute pieces: with more, the memory is what they wait for."""


ALONE = 1 << 5
"""Fewer pieces are computed by this thread alone, which takes less time than to begin others."""


def in_pieces(function: Callable[..., torch.Tensor], *vectors: torch.Tensor) -> torch.Tensor:
    """What a function of each element alone makes of vectors (*, element), a vector (element,), piece by piece.

    It has the bits of one call, whatever the number of threads that compute the pieces of a large vector. These
    need no more memory than the result.
    """
    *others, elements = vectors[0].shape
    size = max(PIECE // math.prod(others), NARROWEST)
    if elements <= size:
        return function(*vectors)

    @torch.no_grad()
    def piece(first: int) -> torch.Tensor:
        return function(*(vector[..., first : first + size] for vector in vectors))

    whole = torch.empty(elements, dtype=(start := piece(0)).dtype)
    whole[:size] = start

    def fill(firsts: Iterable[int]) -> None:
        for first in firsts:
            whole[first : first + size] = piece(first)

    rest, threads = range(size, elements, size), min(THREADS, os.cpu_count() or 1)
    if len(rest) < ALONE:
        fill(rest)
        return whole
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(fill, (rest[thread::threads] for thread in range(threads))))
    return whole
