"""Averages networks whose units are in the same order."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence

import numpy as np
import torch

from roundweave.storage.errors import ShapeMismatch, UsageError
from roundweave.tasks.matching.groups import Tensors

BLOCK = 1 << 16
"""The number of elements that are averaged at once, so that they stay in a processor's cache."""

NOTHING = 1e-9
"""The part of coefficients' sizes below which their sum is what rounding left of zero."""

PACKED = (torch.int8, torch.uint8)
"""Types in which weights are stored that were quantised."""

Layers = Mapping[str, Sequence[float]]
"""Coefficients by the name of a layer."""


def average(
    states: Sequence[Tensors], coefficients: Sequence[float], layers: Layers | None = None
) -> dict[str, torch.Tensor]:
    """The mean of networks' named tensors, of the same shapes, weighted by coefficients whose sum is not zero.

    `layers` has separate coefficients for some layers, by the beginning of their tensors' names. Integer and bool
    tensors take the maximum. Raises `UsageError` for wrong numbers of coefficients, or a sum of zero, and
    `ShapeMismatch` for a tensor that a network lacks, or has of another shape or kind, such as complex numbers.
    """
    averaged = averaging(states, coefficients, layers)
    return {name: averaged(name) for name in states[0]}


def averaging(
    states: Sequence[Tensors], coefficients: Sequence[float], layers: Layers | None = None
) -> Callable[[str], torch.Tensor]:
    """Return a function that computes one tensor of `average`, (*shape), by its name.

    Raises `UsageError` as it does.
    """
    layers = layers or {}
    for given in (coefficients, *layers.values()):
        check_coefficients(given, len(states))
    for layer in layers:
        check_layer(layer, states[0])

    def averaged(name: str) -> torch.Tensor:
        chosen = next((layers[layer] for layer in layers if is_of_layer(name, layer)), coefficients)
        values = [state[name] for state in states if name in state]
        kinds = {f"{kind_of(value.dtype)} of shape {tuple(value.shape)}" for value in values}
        if len(kinds) > 1 or len(values) < len(states):
            given = " and ".join([*sorted(kinds), *["missing"] * (len(values) < len(states))])
            raise ShapeMismatch(f"tensor {name} is {given} in different networks")
        return largest(name, values) if kind_of(values[0].dtype) == "integer" else weighted_mean(values, chosen)

    return averaged


def kind_of(dtype: torch.dtype) -> str:
    """Return the kind of numbers of a type: complex, float or integer."""
    return "complex" if dtype.is_complex else "float" if dtype.is_floating_point else "integer"


def largest(name: str, values: Sequence[torch.Tensor]) -> torch.Tensor:
    """Return the maximum (*shape) of integer or bool tensors (*shape), element by element.

    Raises `UsageError` for integers of 8 bits that differ, as those of quantised weights do, which are no counts.
    """
    if values[0].dtype in PACKED and any(not torch.equal(value, values[0]) for value in values):
        raise UsageError(
            f"tensor {name} has other integers of 8 bits in each network, as quantised weights have, which have "
            "no mean; give networks in floats"
        )
    # By NumPy, as torch has no maximum of unsigned numbers of 16 bits and more.
    return torch.from_numpy(np.asarray(np.stack([value.numpy() for value in values]).max(0)))


def check_coefficients(coefficients: Sequence[float], count: int) -> None:
    """Raise `UsageError` unless there is one for each of `count` networks, and their sum is finite, not 0."""
    total, size = sum(coefficients), sum(map(abs, coefficients))
    if len(coefficients) != count or not math.isfinite(size) or abs(total) <= NOTHING * size:
        raise UsageError(
            f"{count} networks need {count} coefficients whose sum is not 0, not {list(coefficients)}"
        )


def check_layer(layer: str, names: Iterable[str]) -> None:
    """Raise `UsageError` unless one of the names is of a tensor of the layer."""
    if not any(is_of_layer(name, layer) for name in names):
        raise UsageError(f"no tensor is of layer {layer!r}; there are {', '.join(names)}")


def is_of_layer(name: str, layer: str) -> bool:
    """Tell whether the tensor of this name is the layer's, or is itself what is called a layer."""
    return name == layer or name.startswith(f"{layer}.")


def weighted_mean(
    values: Sequence[torch.Tensor], coefficients: Sequence[float], normalize: bool = True
) -> torch.Tensor:
    """Return the mean of tensors (*shape), weighted by coefficients, or their weighted sum without `normalize`."""
    mean = torch.empty(values[0].shape, dtype=values[0].dtype)
    # Numbers of 8 bits have no promotion; complex ones stay complex.
    exact = torch.float32 if mean.itemsize == 1 else torch.promote_types(mean.dtype, torch.float32)
    if normalize:
        # A power of 2 changes no bits. The sum is then above 1/2 and at most 1, so that nothing leaves its range,
        # and the whole weight of 1 on a network keeps even the smallest numbers.
        fraction, power = math.frexp(sum(coefficients))
        coefficients = [math.ldexp(c, (abs(fraction) == 0.5) - power) for c in coefficients]
    divisor = sum(coefficients) if normalize else 1
    scratch = torch.empty(2, min(BLOCK, mean.numel()), dtype=exact)
    for block, *parts in zip(*[tensor.reshape(-1).split(BLOCK) for tensor in (mean, *values)], strict=True):
        weighted, spare = scratch[:, : len(block)]
        total = block if mean.dtype == exact else spare
        torch.mul(parts[0].to(exact), coefficients[0], out=total)
        # One after the other: the order of torch.sum depends on the size, so that bits would, too.
        for c, part in zip(coefficients[1:], parts[1:], strict=True):
            total.add_(torch.mul(part.to(exact), c, out=weighted))
        if divisor != 1:
            total.div_(divisor)
        if total is not block:
            block.copy_(total)
    return mean
