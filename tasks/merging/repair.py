"""Give a merged network's units the statistics that averaging took from them.

The average of two units varies less than either, the less alike they are (Jordan et al. 2023, REPAIR, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

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
    return any(isinstance(module, NORMS) and module.track_running_stats for module in network.modules())


def recompute_batch_norm(network: nn.Module, batches: Sequence[torch.Tensor]) -> None:
    """Replace running means and variances, (units,), by those over batches (examples, …), in one pass.

    Other layers evaluate.
    """
    network.eval()
    norms = [m for m in network.modules() if isinstance(m, NORMS) and m.track_running_stats]
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
    """Scale each hidden unit to the parents' mean deviation and, where its layer has a bias, their mean.

    The parents' units are in the merged network's order; the layers are those whose outputs are interchangeable
    units. Layer by layer in one pass over the inputs (examples, …), so that each sees the ones before it repaired
    (Jordan et al. 2023, section 3.2). Raises `UsageError` where there is no such layer.
    """
    names = _layers(network, units)
    if not names:
        raise UsageError(
            "no linear or convolutional layer has interchangeable outputs, so there is nothing to rescale"
        )
    spreads = _measured(parents, names, inputs)
    # A layer whose weights another module uses, as attention does those of its projection, is never called.
    targets = {n: _mean([spread[n] for spread in spreads], coefficients) for n in names if n in spreads[0]}
    with ExitStack() as hooks, torch.no_grad():
        for name, target in targets.items():
            hooks.enter_context(_hooked(network.get_submodule(name), _Correction(target)))
        network.eval()(inputs)


def _layers(network: nn.Module, units: UnitGroups) -> list[str]:
    return [name for name, module in network.named_modules() if isinstance(module, LAYERS) and _free(name, units)]


def _free(name: str, units: UnitGroups) -> bool:
    weight = f"{name}.weight"
    return any(piece.tensor == weight and _output_group(piece.groups, piece.axes) for piece in units.pieces)


def _output_group(groups: Sequence[str | None], axes: Sequence[int]) -> bool:
    return any(group is not None and axis == 0 for group, axis in zip(groups, axes, strict=True))


class _Correction:
    """A forward hook that moves a layer's parameters, and the output at hand, to the wanted statistics."""

    def __init__(self, target: Spread) -> None:
        self.target = target

    def __call__(self, module: nn.Module, inputs: object, output: torch.Tensor) -> torch.Tensor:
        assert isinstance(module, LAYERS)
        current = spread_of(module, output)
        # A unit that does not vary has nothing to scale.
        scale = torch.where(current.deviation > 1e-8, self.target.deviation / current.deviation, torch.ones(()))
        shape = [-1] + [1] * (module.weight.ndim - 1)
        module.weight.mul_(scale.reshape(shape))
        across = [-1] + [1] * (module.weight.ndim - 2)
        if module.bias is None:
            return output * scale.reshape(across)
        shift = self.target.mean - scale * current.mean
        module.bias.mul_(scale).add_(shift)
        return output * scale.reshape(across) + shift.reshape(across)


def spread_of(module: nn.Module, output: torch.Tensor) -> Spread:
    """Statistics of a layer's output (examples, units, …), for a linear one (…, units), over all but its units."""
    axis = -1 if isinstance(module, nn.Linear) else 1
    samples = output.movedim(axis, 0).flatten(1).double()
    return Spread(samples.mean(1).to(output.dtype), samples.std(1, correction=0).to(output.dtype))


def _measured(
    networks: Iterable[nn.Module], names: Sequence[str], inputs: torch.Tensor
) -> list[dict[str, Spread]]:
    spreads = []
    for network in networks:
        here: dict[str, Spread] = {}
        with ExitStack() as hooks, torch.no_grad():
            for name in names:
                hooks.enter_context(_hooked(network.get_submodule(name), _recorder(here, name)))
            network.eval()(inputs)
        spreads.append(here)
    return spreads


def _recorder(spreads: dict[str, Spread], name: str) -> Callable[[nn.Module, object, torch.Tensor], None]:
    def record(module: nn.Module, inputs: object, output: torch.Tensor) -> None:
        spreads[name] = spread_of(module, output)

    return record


@contextmanager
def _hooked(module: nn.Module, hook: Callable[..., torch.Tensor | None]) -> Iterator[None]:
    handle = module.register_forward_hook(hook)
    try:
        yield
    finally:
        handle.remove()


def _mean(spreads: Sequence[Spread], coefficients: Sequence[float]) -> Spread:
    pairs = list(zip(coefficients, spreads, strict=True))
    total = sum(coefficients)
    return Spread(
        torch.stack([c * spread.mean for c, spread in pairs]).sum(0) / total,
        torch.stack([c * spread.deviation for c, spread in pairs]).sum(0) / total,
    )
