"""Repairs the statistics of a merged network's units.

The average of two units varies less than either of them, and the less, the less alike they are (Jordan et al.
2023, REPAIR, section 3).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import ExitStack
from functools import partial

import torch
from torch import nn

from roundweave.storage.errors import DataError, UsageError
from roundweave.tasks.data.examples import Examples, Tensors
from roundweave.tasks.matching.groups import UnitGroups
from roundweave.tasks.networks.outputs import call

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d)
LAYERS = (nn.Linear, nn.Conv1d, nn.Conv2d, nn.Conv3d)
BATCH = 250
"""The number of examples that go through a network at once when its statistics are recomputed."""


def repair(
    network: nn.Module,
    parents: Iterable[nn.Module],
    coefficients: Sequence[float],
    inputs: Tensors,
    units: UnitGroups,
) -> None:
    """Recompute a merged network's BatchNorm statistics on inputs (examples, …), or rescale its units if none."""
    if has_batch_norm(network):
        # Batches of nearly equal size, as each counts the same, and a single example would have no variance.
        examples = Examples(inputs, targets={})
        size = math.ceil(len(examples) / math.ceil(len(examples) / BATCH))
        recompute_batch_norm(network, [batch.inputs for batch in examples.slices(size)])
    else:
        rescale(network, parents, coefficients, inputs, units)


def concatenated(parts: Sequence[Tensors]) -> Tensors:
    """Return the inputs (examples, *) of batches as one.

    Raises `DataError` if they were padded to other lengths.
    """
    if isinstance(parts[0], Mapping):
        return {name: concatenated([part[name] for part in parts]) for name in parts[0]}
    if len({part.shape[1:] for part in parts}) > 1:
        raise DataError(
            "a repair or a solve needs inputs of one length; have --collate pad them to one, or give --blocks 1"
        )
    return torch.cat([*parts])


def has_batch_norm(network: nn.Module) -> bool:
    """Tell whether a network has BatchNorm layers with running statistics, which can be recomputed."""
    return bool(_norms(network))


def _norms(network: nn.Module) -> list[nn.BatchNorm1d | nn.BatchNorm2d | nn.BatchNorm3d]:
    return [m for m in network.modules() if isinstance(m, NORMS) and m.track_running_stats]


def recompute_batch_norm(network: nn.Module, batches: Sequence[Tensors]) -> None:
    """Replace BatchNorm's running means and variances, (units,), by those over batches (examples, …), in one pass.

    All other layers are in evaluation mode.
    """
    network.eval()
    with ExitStack() as stack, torch.no_grad():
        for norm in _norms(network):
            stack.callback(setattr, norm, "momentum", norm.momentum)
            norm.reset_running_stats()
            norm.momentum = None  # the plain mean over batches
            norm.train()
        for batch in batches:
            call(network, batch)
    network.eval()


def rescale(
    network: nn.Module,
    parents: Iterable[nn.Module],
    coefficients: Sequence[float],
    inputs: Tensors,
    units: UnitGroups,
) -> None:
    """Scale each hidden unit to the parents' mean deviation and, if its layer has a bias, to their mean.

    The parents' units must be in the merged network's order. Rescaled are the layers whose outputs are
    interchangeable units, in one pass over the inputs (examples, …), so that each layer reads repaired ones
    (Jordan et al. 2023, section 3.2). A layer that is called twice, or shares its weight with another one, has two
    spreads and stays as it is. Raises `UsageError` if no layer has such outputs.
    """
    # The first axis of a layer's weight has its outputs.
    free = {tensor for group in units.groups for tensor, axis, _ in units.members(group) if axis == 0}
    free -= {*units.aliases, *units.aliases.values()}
    every = (name for name, layer in network.named_modules() if isinstance(layer, LAYERS))
    names = [name for name in every if f"{name}.weight" in free]
    if not names:
        raise UsageError(
            "no linear or convolutional layer has interchangeable outputs, so there is nothing to rescale"
        )
    spreads: list[dict[str, list[torch.Tensor]]] = []
    for parent in parents:
        spreads.append({name: [] for name in names})
        _run(parent, inputs, {name: partial(_measure, spreads[-1][name]) for name in names})
    # Some layers are never called, as attention reads the weights of its projection directly.
    once = [name for name in names if all(len(each[name]) == 1 for each in spreads)]
    targets = {name: _mean([each[name][0] for each in spreads], coefficients) for name in once}
    _run(network, inputs, {name: partial(_correct, target) for name, target in targets.items()})


def _run(network: nn.Module, inputs: Tensors, hooks: Mapping[str, Callable[..., torch.Tensor | None]]) -> None:
    """Evaluate a network with a hook after each of these layers; a hook's return value replaces the output."""
    with ExitStack() as stack, torch.no_grad():
        for name, hook in hooks.items():
            stack.enter_context(network.get_submodule(name).register_forward_hook(hook))
        call(network.eval(), inputs)


def _measure(spreads: list[torch.Tensor], module: nn.Module, _: object, output: torch.Tensor) -> None:
    spreads.append(spread_of(module, output))


def _correct(target: torch.Tensor, module: nn.Module, _: object, output: torch.Tensor) -> torch.Tensor:
    """Change a layer's parameters so that its output has the target's `spread_of`; returns the changed output."""
    assert isinstance(module, LAYERS)
    current = spread_of(module, output)
    # A constant unit cannot be scaled to another deviation.
    scale = torch.where(current[1] > 1e-8, target[1] / current[1], torch.ones(()))
    across = [-1] + [1] * (module.weight.ndim - 2)
    module.weight.mul_(scale.reshape(*across, 1))
    if module.bias is None:
        return output * scale.reshape(across)
    shift = target[0] - scale * current[0]
    module.bias.mul_(scale).add_(shift)
    return output * scale.reshape(across) + shift.reshape(across)


def spread_of(module: nn.Module, output: torch.Tensor) -> torch.Tensor:
    """Return the mean and the standard deviation, (2, units), of each unit in a layer's output.

    The output is (examples, units, …), or (…, units) of a linear layer.
    """
    axis = -1 if isinstance(module, nn.Linear) else 1
    samples = output.movedim(axis, 0).flatten(1).double()
    return torch.stack([samples.mean(1), samples.std(1, correction=0)]).to(output.dtype)


def _mean(spreads: Sequence[torch.Tensor], coefficients: Sequence[float]) -> torch.Tensor:
    weighted = [c * spread for c, spread in zip(coefficients, spreads, strict=True)]
    return torch.div(torch.stack(weighted).sum(0), sum(coefficients))
