"""Give a merged network's units the statistics that averaging took from them.

The average of two units varies less than either, the less alike they are (Jordan et al. 2023, REPAIR, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from storage.errors import UsageError
from tasks.matching.groups import UnitGroups

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH = 250
"""Examples that go through a network at once where its statistics are recomputed."""


@dataclass(frozen=True)
class Spread:
    """Mean and standard deviation of each unit of a layer's output, (units,) both."""

    mean: torch.Tensor
    deviation: torch.Tensor


def repair(
    network: nn.Module,
    parents: Iterable[nn.Module],
    coefficients: Sequence[float],
    inputs: torch.Tensor,
    units: UnitGroups,
) -> None:
    """Recompute a merged network's statistics on inputs (examples, …), or rescale its units where it has none."""
    if has_batch_norm(network):
        # Batches of nearly one size: each counts the same, and one of a single example has no variance.
        recompute_batch_norm(network, inputs.chunk(math.ceil(len(inputs) / BATCH)))
    else:
        rescale(network, parents, coefficients, inputs, units)


def has_batch_norm(network: nn.Module) -> bool:
    """Whether a network keeps running statistics, (units,) each, that can be recomputed."""
    return bool(_norms(network))


def _norms(network: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d]:
    return [m for m in network.modules() if isinstance(m, NORMS) and m.track_running_stats]


def recompute_batch_norm(network: nn.Module, batches: Sequence[torch.Tensor]) -> None:
    """Replace running means and variances, (units,), by those over batches (examples, …), in one pass.

    Other layers evaluate.
    """
    network.eval()
    norms = _norms(network)
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        norm.reset_running_stats()
        norm.momentum = None  # the plain mean over batches
        norm.train()
    with torch.no_grad():
        for batch in batches:
            network(batch)
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
    network.eval()


def rescale(
    network: nn.Module,
    parents: Iterable[nn.Module],
    coefficients: Sequence[float],
    inputs: torch.Tensor,
    units: UnitGroups,
) -> None:
    """Scale each hidden unit to the parents' mean deviation and, if its layer has a bias, to their mean.

    The parents' units are in the merged network's order; the layers are those whose outputs are interchangeable
    units. Layer by layer in one pass over the inputs (examples, …), so that each sees the ones before it repaired
    (Jordan et al. 2023, section 3.2). Raises `UsageError` where there is no such layer.
    """
    names = [name for name, layer in network.named_modules() if isinstance(layer, LAYERS) and _free(name, units)]
    if not names:
        raise UsageError(
            "no linear or convolutional layer has interchangeable outputs, so there is nothing to rescale"
        )
    spreads = []
    for parent in parents:
        here: dict[str, Spread] = {}
        _run(parent, inputs, {name: partial(_measure, here, name) for name in names})
        spreads.append(here)
    # A layer whose weights another module uses, as attention does those of its projection, is never called.
    targets = {n: _mean([spread[n] for spread in spreads], coefficients) for n in names if n in spreads[0]}
    _run(network, inputs, {name: partial(_correct, target) for name, target in targets.items()})


def _free(name: str, units: UnitGroups) -> bool:
    """Whether a layer's outputs, the first axis of its weight, are interchangeable units."""
    return any(
        group is not None and axis == 0
        for piece in units.pieces
        if piece.tensor == f"{name}.weight"
        for group, axis in zip(piece.groups, piece.axes, strict=True)
    )


def _run(
    network: nn.Module, inputs: torch.Tensor, hooks: Mapping[str, Callable[..., torch.Tensor | None]]
) -> None:
    """Evaluate a network with a hook after each of these layers; what a hook returns replaces the output."""
    with ExitStack() as stack, torch.no_grad():
        for name, hook in hooks.items():
            stack.enter_context(network.get_submodule(name).register_forward_hook(hook))
        network.eval()(inputs)


def _measure(spreads: dict[str, Spread], name: str, module: nn.Module, _: object, output: torch.Tensor) -> None:
    spreads[name] = spread_of(module, output)


def _correct(target: Spread, module: nn.Module, _: object, output: torch.Tensor) -> torch.Tensor:
    """Change a layer's parameters, and its output, so that the output has the wanted statistics."""
    assert isinstance(module, LAYERS)
    current = spread_of(module, output)
    # A unit that does not vary has nothing to scale.
    scale = torch.where(current.deviation > 1e-8, target.deviation / current.deviation, torch.ones(()))
    shape = [-1] + [1] * (module.weight.ndim - 1)
    module.weight.mul_(scale.reshape(shape))
    across = [-1] + [1] * (module.weight.ndim - 2)
    if module.bias is None:
        return output * scale.reshape(across)
    shift = target.mean - scale * current.mean
    module.bias.mul_(scale).add_(shift)
    return output * scale.reshape(across) + shift.reshape(across)


def spread_of(module: nn.Module, output: torch.Tensor) -> Spread:
    """Statistics of a layer's output (examples, units, …), for a linear one (…, units), over all but its units."""
    axis = -1 if isinstance(module, nn.Linear) else 1
    samples = output.movedim(axis, 0).flatten(1).double()
    return Spread(samples.mean(1).to(output.dtype), samples.std(1, correction=0).to(output.dtype))


def _mean(spreads: Sequence[Spread], coefficients: Sequence[float]) -> Spread:
    pairs, total = list(zip(coefficients, spreads, strict=True)), sum(coefficients)
    return Spread(
        torch.stack([c * spread.mean for c, spread in pairs]).sum(0) / total,
        torch.stack([c * spread.deviation for c, spread in pairs]).sum(0) / total,
    )
