"""Averages networks whose units are in the same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import numpy as np
import torch

from roundweave.storage.errors import ShapeMismatch, UsageError
from roundweave.tasks.matching.groups import Tensors

BLOCK = 1 << 16
"""The number of elements that are averaged at once, so that they stay in a processor's cache."""

Layers = Mapping[str, Sequence[float]]
"""Coefficients by the name of a layer."""


def average(
    states: Sequence[Tensors], coefficients: Sequence[float], layers: Layers | None = None
) -> dict[str, torch.Tensor]:
    """The mean of networks' named tensors, of the same shapes, weighted by coefficients with a positive sum.

    `layers` has separate coefficients for some layers, by the beginning of their tensors' names. Integer and bool
    tensors take the maximum. Raises `UsageError` for wrong numbers of coefficients, or negative ones, and
    `ShapeMismatch` for a tensor that a network lacks, or has of another shape or kind, such as complex numbers.
    """
    averaged = averaging(states, coefficients, layers)
    return {name: averaged(name) for name in states[0]}


def averaging(
    states: Sequence[Tensors], coefficients: Sequence[float], layers: Layers | None = None
) -> Callable[[str], torch.Tensor]:
    """A function that computes one tensor of `average`, (*shape), by its name; raises `UsageError` as it does."""
    layers = layers or {}
    for given in (coefficients, *layers.values()):
        if len(given) != len(states) or not 0 < sum(given) < math.inf or min(given) < 0:
            raise UsageError(f"{len(states)} networks need as many coefficients, not negative, not {list(given)}")
    for layer in layers:
        if not any(_belongs(name, layer) for name in states[0]):
            raise UsageError(f"no tensor is of layer {layer!r}; there are {', '.join(states[0])}")

    def averaged(name: str) -> torch.Tensor:
        chosen = next((layers[layer] for layer in layers if _belongs(name, layer)), coefficients)
        values = [state[name] for state in states if name in state]
        kinds = {f"{_kind(value.dtype)} of shape {tuple(value.shape)}" for value in values}
        if len(kinds) > 1 or len(values) < len(states):
            given = " and ".join([*sorted(kinds), *["missing"] * (len(values) < len(states))])
            raise ShapeMismatch(f"tensor {name} is {given} in different networks")
        return _largest(values) if _kind(values[0].dtype) == "integer" else _mean(values, chosen)

    return averaged


def _kind(dtype: torch.dtype) -> str:
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"


def _belongs(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def _largest(values: Sequence[torch.Tensor]) -> torch.Tensor:
    # By NumPy, as torch has no maximum of unsigned numbers of 16 bits and more.
    return torch.from_numpy(np.asarray(np.stack([value.numpy() for value in values]).max(0)))


def _mean(values: Sequence[torch.Tensor], coefficients: Sequence[float]) -> torch.Tensor:
    mean = torch.empty(values[0].shape, dtype=values[0].dtype)
    # Numbers of 8 bits have no promotion; complex ones stay complex.
    exact = torch.float32 if mean.itemsize == 1 else torch.promote_types(mean.dtype, torch.float32)
    # A power of 2 changes no bits. The sum is then above 1/2 and at most 1, so that nothing leaves its range, and
    # the whole weight of 1 on a network keeps even the smallest numbers.
    fraction, power = math.frexp(sum(coefficients))
    coefficients = [math.ldexp(c, (fraction == 0.5) - power) for c in coefficients]
    size = min(BLOCK, mean.numel())
    weighted, total = torch.empty(len(values), size, dtype=exact), torch.empty(size, dtype=exact)
    blocks = [tensor.reshape(-1).split(BLOCK) for tensor in (mean, *values)]
    for block, *parts in zip(*blocks, strict=True):
        rows, summed = weighted[:, : len(block)], total[: len(block)]
        for row, c, part in zip(rows, coefficients, parts, strict=True):
            torch.mul(part.to(exact), c, out=row)
        block.copy_(torch.sum(rows, 0, out=summed).div_(sum(coefficients)))
    return mean
