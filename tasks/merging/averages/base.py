"""What an average is: what becomes of one tensor's values in several networks, and in their base network."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import BLOCK


@dataclass(frozen=True)
class Versions:
    """A tensor's values (*shape), floats of one type, in networks with coefficients, and in their base."""

    name: str
    values: Sequence[torch.Tensor]
    coefficients: Sequence[float]
    base: torch.Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class Average(ABC):
    """A function of one tensor's values in all networks; its annotated fields are its options.

    `seed` decides what is drawn at random.
    """

    needs_base: ClassVar[bool] = False
    """Whether it takes the network from which all were trained."""
    takes_coefficients: ClassVar[bool] = True
    """Whether each network has a coefficient."""
    elementwise: ClassVar[bool] = False
    """Whether an element of the average is a function of the same element of each network alone."""
    networks: ClassVar[int | None] = None
    """The only number of networks that it takes, if there is one."""

    seed: int = 0

    @abstractmethod
    def __call__(self, tensor: Versions) -> torch.Tensor:
        """The average (*shape) of what a tensor is in the networks."""

    def check(self, coefficients: Sequence[float]) -> None:
        """Raise `UsageError` if it cannot be computed with these coefficients, one for each network."""
        if self.networks and len(coefficients) != self.networks:
            raise UsageError(f"{type(self).__name__} takes {self.networks} networks, not {len(coefficients)}")

    def buffer_coefficients(self, coefficients: Sequence[float]) -> Sequence[float]:
        """Coefficients of the mean of buffers, such as BatchNorm's variances, which must not become negative."""
        return [abs(c) for c in coefficients] if any(coefficients) else [1.0] * len(coefficients)


def exact_type(tensor: torch.Tensor) -> torch.dtype:
    """Return the type in which a tensor's average is computed, before it is rounded to the tensor's own."""
    return torch.float64 if tensor.dtype == torch.float64 else torch.float32


def by_block(function: Callable[..., torch.Tensor], first: torch.Tensor, *others: torch.Tensor) -> torch.Tensor:
    """A function of the elements of tensors (*shape), computed exactly, then rounded to the first one's type.

    The function gets blocks (elements,) of each tensor, so that what it computes takes little memory.
    """
    result = torch.empty(first.shape, dtype=first.dtype)
    blocks = [tensor.reshape(-1).split(BLOCK) for tensor in (result, first, *others)]
    for block, *parts in zip(*blocks, strict=True):
        block.copy_(function(*[part.to(exact_type(first)) for part in parts]))
    return result
