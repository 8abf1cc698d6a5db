"""Averages of task vectors, which are what training changed in a base network: each network minus the base."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

import torch
from pydantic import BeforeValidator, Field

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import check_coefficients
from roundweave.tasks.merging.averages.base import Average, Versions, by_block, exact_type
from roundweave.tasks.merging.averages.interpolations import Normalize
from roundweave.tasks.numerics.pinning import derive_seed

Scaling = Annotated[float, Field(allow_inf_nan=False, description="factor on the merged change (lambda)")]
Density = Annotated[
    tuple[Annotated[float, Field(gt=0, le=1)], ...],
    BeforeValidator(lambda given: (given,) if isinstance(given, int | float) else given),
    Field(
        description="fraction of each network's change to use (above 0, at most 1): one number, or one per network"
    ),
]
Elect = Annotated[
    Literal["sum", "count"],
    Field(description="sign of a changed element: sum (of the sum of changes), count (of most changes)"),
]
Rescale = Annotated[bool, Field(description="divide the changes that were not dropped by the density")]


@dataclass(frozen=True, kw_only=True)
class TaskArithmetic(Average):
    """base + scaling * sum of coefficient * (network - base). Source: Ilharco et al. 2023, section 2."""

    needs_base: ClassVar[bool] = True
    elementwise: ClassVar[bool] = True

    scaling: Scaling = 1.0
    normalize: Normalize = False

    def __call__(self, tensor: Versions) -> torch.Tensor:
        assert tensor.base is not None
        base, coefficients, exact = tensor.base, tensor.coefficients, exact_type(tensor.base)
        changes = [
            self.sparse(tensor.name, i, value.to(exact) - base.to(exact)) for i, value in enumerate(tensor.values)
        ]

        def merged(start: torch.Tensor, *parts: torch.Tensor) -> torch.Tensor:
            weighted = torch.stack([c * part for c, part in zip(coefficients, parts, strict=True)])
            return start + self.scaling * self.joined(weighted, coefficients)

        return by_block(merged, base, *changes)

    def check(self, coefficients: Sequence[float]) -> None:
        super().check(coefficients)
        if self.normalize:
            check_coefficients(coefficients, len(coefficients))

    def sparse(self, name: str, number: int, change: torch.Tensor) -> torch.Tensor:
        """Return what is taken of the change (*shape) of one network's tensor."""
        return change

    def joined(self, weighted: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
        """Return the merged change (elements,) of weighted changes (networks, elements)."""
        return weighted.sum(0) / sum(coefficients) if self.normalize else weighted.sum(0)


@dataclass(frozen=True, kw_only=True)
class _Electing(TaskArithmetic):
    """Changes against the elected sign of an element are left out of its mean."""

    elect: Elect = "sum"

    def check(self, coefficients: Sequence[float]) -> None:
        super().check(coefficients)
        if self.normalize and min(coefficients) < 0:
            raise UsageError(
                f"normalize divides by the coefficients of the networks that agree, which would undo the negative "
                f"ones of {list(coefficients)}; give normalize = false"
            )

    def joined(self, weighted: torch.Tensor, coefficients: Sequence[float]) -> torch.Tensor:
        signs = weighted.sign()
        elected = (weighted if self.elect == "sum" else signs).sum(0) >= 0
        agreeing = torch.where(elected, signs > 0, signs < 0)
        total = (weighted * agreeing).sum(0)
        if not self.normalize:
            return total
        divisor = (torch.tensor(coefficients, dtype=weighted.dtype)[:, None] * agreeing).sum(0)
        return total / torch.where(divisor == 0, 1, divisor)  # 0: no network changed the element


@dataclass(frozen=True, kw_only=True)
class Ties(_Electing):
    """Trims each change to its largest elements, elects the sign of each, and takes the mean of those that agree.

    The `density` * elements largest magnitudes stay, rounded down, but at least one, and of equal ones the first.
    Source: Yadav et al. 2023, section 4.
    """

    elementwise: ClassVar[bool] = False

    normalize: Normalize = True
    density: Density = (0.2,)

    def sparse(self, name: str, number: int, change: torch.Tensor) -> torch.Tensor:
        return _largest(change, each_density(self.density, number))


@dataclass(frozen=True, kw_only=True)
class DareLinear(TaskArithmetic):
    """Drops elements of each change at random and divides the others by the density, which keeps the expectation.

    What is dropped is drawn from the seed, the network's number and the tensor's name. Source: Yu et al. 2024,
    section 3.1.
    """

    elementwise: ClassVar[bool] = False

    density: Density = (0.1,)
    rescale: Rescale = True

    def sparse(self, name: str, number: int, change: torch.Tensor) -> torch.Tensor:
        return _dropped(change, each_density(self.density, number), self.rescale, self.seed, number, name)


@dataclass(frozen=True, kw_only=True)
class DareTies(_Electing, DareLinear):
    """Drops elements as `DareLinear` does, and then elects signs as `Ties` does. Source: Yu et al. 2024."""


def each_density(density: Sequence[float], number: int) -> float:
    """Return the density of one network, if there is one for all or one for each."""
    return density[number] if len(density) > 1 else density[0]


def _largest(change: torch.Tensor, density: float) -> torch.Tensor:
    count = max(1, int(density * change.numel()))
    if density == 1 or not change.numel():
        return change
    sizes = change.reshape(-1).abs()
    least = sizes.kthvalue(sizes.numel() - count + 1).values
    kept = sizes > least
    equal = (sizes == least).nonzero()[: count - int(kept.sum()), 0]
    kept[equal] = True
    return change * kept.reshape(change.shape)


def _dropped(
    change: torch.Tensor, density: float, rescale: bool, seed: int, number: int, name: str
) -> torch.Tensor:
    if density == 1:
        return change
    generator = torch.Generator().manual_seed(derive_seed(seed, number, name))
    kept = torch.rand(change.shape, generator=generator) < density
    return change * kept / (density if rescale else 1)
