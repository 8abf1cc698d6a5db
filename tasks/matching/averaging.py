"""Averages networks whose units are in the same order."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import torch

from storage.errors import UsageError
from tasks.matching.groups import Tensors


def average(
    states: Sequence[Tensors], coefficients: Sequence[float], layers: Mapping[str, Sequence[float]] | None = None
) -> dict[str, torch.Tensor]:
    """The mean of networks' named tensors, of the same shapes, weighted by coefficients with a positive sum.

    `layers` has separate coefficients for some layers, by the beginning of their tensors' names. Integer and bool
    tensors take the maximum. Raises `UsageError` for wrong numbers of coefficients, or negative ones.
    """
    own = dict(layers or {})
    for given in (coefficients, *own.values()):
        if len(given) != len(states) or not 0 < sum(given) < math.inf or min(given) < 0:
            raise UsageError(f"{len(states)} networks need as many coefficients, not negative, not {list(given)}")
    for layer in own:
        check_layer(layer, states[0])
    mean = {}
    for name in states[0]:
        chosen = next((own[layer] for layer in own if _belongs(name, layer)), coefficients)
        values = [state[name] for state in states]
        floating = values[0].is_floating_point()
        mean[name] = _mean(values, chosen) if floating else torch.stack(values).amax(0)
    return mean


def check_layer(layer: str, state: Tensors) -> None:
    """Raise `UsageError` if none of the named tensors belongs to the layer."""
    if not any(_belongs(name, layer) for name in state):
        raise UsageError(f"no tensor is of layer {layer!r}; there are {', '.join(state)}")


def _belongs(name: str, layer: str) -> bool:
    return name == layer or name.startswith(f"{layer}.")


def _mean(values: Sequence[torch.Tensor], coefficients: Sequence[float]) -> torch.Tensor:
    exact = torch.float64 if values[0].dtype == torch.float64 else torch.float32
    total = torch.stack([c * value.to(exact) for c, value in zip(coefficients, values, strict=True)]).sum(0)
    return (total / sum(coefficients)).to(values[0].dtype)
