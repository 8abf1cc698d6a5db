"""Large vectors, computed a piece at a time."""

from __future__ import annotations

from collections.abc import Callable

import torch

PIECE = 1 << 17
"""How many elements of vectors are computed at once: so few that a processor's cache holds them."""


def in_pieces(function: Callable[..., torch.Tensor], *vectors: torch.Tensor) -> torch.Tensor:
    """What a function of each element alone makes of vectors (*, element), a vector (element,), piece by piece.

    It has the bits of one call. Large vectors take half the time, and no more memory than the result.
    """
    elements = vectors[0].shape[-1]
    if elements <= PIECE:
        return function(*vectors)
    whole = torch.empty(0)
    for first in range(0, elements, PIECE):
        piece = function(*(vector[..., first : first + PIECE] for vector in vectors))
        whole = whole if first else piece.new_empty(elements)
        whole[first : first + PIECE] = piece
    return whole
