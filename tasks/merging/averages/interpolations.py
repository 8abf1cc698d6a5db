"""Averages that need no base network: the weighted mean, and spherical interpolation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar

import torch
from pydantic import Field

from roundweave.tasks.matching.averaging import BLOCK, check_coefficients, weighted_mean
from roundweave.tasks.merging.averages.base import Average, Versions, by_block
from roundweave.tasks.numerics.pinning import limited

Normalize = Annotated[bool, Field(description="divide the weighted sum by the sum of the coefficients")]
Step = Annotated[float, Field(ge=0, le=1, description="position between the first network (0) and the second (1)")]

PARALLEL = 0.9995
"""The cosine of an angle so small that the interpolation along the arc is numerically that along the line."""


@dataclass(frozen=True, kw_only=True)
class LinearMean(Average):
    """The weighted mean, or the weighted sum; coefficients may be negative, if their sum is not zero.

    Source: Wortsman et al. 2022, Model soups, section 2.
    """

    elementwise: ClassVar[bool] = True

    normalize: Normalize = True

    def __call__(self, tensor: Versions) -> torch.Tensor:
        return weighted_mean(tensor.values, tensor.coefficients, self.normalize)

    def check(self, coefficients: Sequence[float]) -> None:
        super().check(coefficients)
        if self.normalize:
            check_coefficients(coefficients, len(coefficients))


@dataclass(frozen=True, kw_only=True)
class Slerp(Average):
    """The point of the arc between two networks' tensors, taken as vectors, as far as `t`.

    Tensors that are nearly parallel, or one of which is zero, are interpolated linearly: there the arc is a line,
    or there is none. Source: Shoemake 1985, section 3.3.
    """

    takes_coefficients: ClassVar[bool] = False
    networks: ClassVar[int | None] = 2

    t: Step = 0.5

    def __call__(self, tensor: Versions) -> torch.Tensor:
        first, second = tensor.values
        if self.t in (0, 1):  # the ends to the bit, also their negative zeros
            return (second if self.t else first).clone()
        one, other = _on_arc(_cosine(first, second), self.t)
        return by_block(lambda a, b: one * a + other * b, first, second)

    def buffer_coefficients(self, coefficients: Sequence[float]) -> Sequence[float]:
        return (1 - self.t, self.t)


def _on_arc(cosine: float | None, t: float) -> tuple[float, float]:
    """Return the coefficients of two vectors at a point of the arc, or of the line, between them."""
    if cosine is None or abs(cosine) > PARALLEL:
        return 1 - t, t
    angle = math.acos(cosine)
    return math.sin((1 - t) * angle) / math.sin(angle), math.sin(t * angle) / math.sin(angle)


def _cosine(first: torch.Tensor, second: torch.Tensor) -> float | None:
    """Return the cosine of the angle between two tensors as vectors, the same for any threads.

    None if one is zero.
    """
    product, squares = 0.0, [0.0, 0.0]
    with limited(threads=1):
        for a, b in zip(first.reshape(-1).split(BLOCK), second.reshape(-1).split(BLOCK), strict=True):
            x, y = a.double(), b.double()
            product += float((x * y).sum())
            squares = [squares[0] + float((x * x).sum()), squares[1] + float((y * y).sum())]
    norm = math.sqrt(squares[0]) * math.sqrt(squares[1])
    return product / norm if norm else None
