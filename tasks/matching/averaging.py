"""Averages networks whose units are in the same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence

import torch

from roundweave.storage.errors import UsageError
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
    tensors take the maximum. Raises `UsageError` for wrong numbers of coefficients, or negative ones.
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
        values = [state[name] for state in states]
        return _mean(values, chosen) if values[0].is_floating_point() else torch.stack(values).amax(0)

    return averaged


def _belongs(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def _mean(values: Sequence[torch.Tensor], coefficients: Sequence[float]) -> torch.Tensor:
    mean = torch.empty(values[0].shape, dtype=values[0].dtype)
    exact = torch.float64 if mean.dtype == torch.float64 else torch.float32
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
