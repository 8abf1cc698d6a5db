"""Solves each layer of a merged network for the outputs of its parents' layers, by least squares.

RegMean (Jin et al. 2023, section 3) takes the parents' own inputs of a layer, of which Gram matrices are enough.
PLeaS (Nasery et al. 2024, section 4) goes up the layers, and takes those that the merged network itself has.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.groups import Tensors
from roundweave.tasks.matching.solving.grams import Grams
from roundweave.tasks.matching.solving.layers import Layer, find_layers
from roundweave.tasks.matching.solving.walking import Walk
from roundweave.tasks.matching.tapping import batch_size, first_batch, whole_batches
from roundweave.tasks.matching.tracing.exporting import Inputs, exported, plain_attention

SHRINKAGE = 0.9
"""What is left of the products of two different inputs (Jin et al. 2023, section 3.3)."""

RIDGE = 1e-6
"""How strongly a layer is held to the parents' mean, as a share of its inputs' mean square."""


@dataclass(frozen=True)
class ParentLayer:
    """What one parent wants of a layer: its outputs `matrix` x inputs, for inputs with these mean products.

    `gram` has those of the inputs that the merged layer has, and `cross` of the parent's outputs with them:
    float64 (group, in, in) and (group, out, in).
    """

    matrix: torch.Tensor
    gram: torch.Tensor
    cross: torch.Tensor

    def shrunk(self, by: float) -> ParentLayer:
        """Hold each column to the parent's own in part, by leaving out a share of products of unlike inputs."""
        alone = self.gram.diagonal(dim1=1, dim2=2)
        gram = by * self.gram + (1 - by) * alone.diag_embed()
        return replace(self, gram=gram, cross=by * self.cross + (1 - by) * self.matrix * alone[:, None])


def solved(
    wanted: Sequence[ParentLayer], coefficients: Sequence[float], shrinkage: float = SHRINKAGE
) -> torch.Tensor:
    """The matrix (group, out, in) with the least weighted sum of squared differences from what parents want.

    Columns whose inputs are 0 for all parents, and directions in which no input lies, keep the parents' mean.
    """
    shares = [c / sum(coefficients) for c in coefficients]
    held = [each.shrunk(shrinkage) for each in wanted]
    mean, gram, cross = (
        torch.stack([share * getattr(each, name) for share, each in zip(shares, held, strict=True)]).sum(0)
        for name in ("matrix", "gram", "cross")
    )
    size = gram.diagonal(dim1=1, dim2=2).mean(1).clamp_min(torch.finfo(torch.float64).tiny)
    ridge = RIDGE * size[:, None, None] * torch.eye(gram.shape[1], dtype=gram.dtype)
    factor = torch.linalg.cholesky(gram + ridge)
    return mean + torch.cholesky_solve((cross - mean @ gram).mT, factor).mT


def regmean(
    states: Sequence[Tensors],
    grams: Sequence[Grams],
    layers: Mapping[str, Layer],
    coefficients: Sequence[float],
    shrinkage: float = SHRINKAGE,
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the solved weights and biases by name, layer by layer; `states` and `grams` are in one order of units.

    Raises `UsageError` if a layer has no Gram matrix.
    """
    for name, layer in layers.items():
        if lacking := [i for i, each in enumerate(grams) if name not in each]:
            raise UsageError(
                f"there is no Gram matrix of {name} for network {lacking[0]}; make it of this network"
            )
        matrices = [layer.matrix(state) for state in states]
        products = [each[name].double() for each in grams]
        wanted = [ParentLayer(m, gram, m @ gram) for m, gram in zip(matrices, products, strict=True)]
        yield from layer.tensors(solved(wanted, coefficients, shrinkage), states[0]).items()


def least_squares(
    model: nn.Module,
    states: Sequence[Tensors],
    inputs: Sequence[Inputs],
    coefficients: Sequence[float],
    shrinkage: float = SHRINKAGE,
) -> dict[str, torch.Tensor]:
    """Return the named tensors of the mean of networks, with its layers solved one after the other (PLeaS).

    Each network has inputs (examples, …) of its own, on which the merged layers are to give its layers' outputs;
    those beyond the last whole batch are not used. `states` are in one order of units. What is not of a layer is
    the mean. Each network is run once, from layer to layer; the values at one place of the graph are in memory for
    all batches.
    """
    merged = dict(average(states, coefficients))
    programs = [exported(model, first_batch(own, batch_size(own))) for own in inputs]
    each = [find_layers(program) for program in programs]
    with torch.no_grad(), plain_attention():
        walks = [
            [
                tuple(Walk(program, part, state) for state in (parent, merged))
                for part in whole_batches(own, batch_size(own))
            ]
            for program, own, parent in zip(programs, inputs, states, strict=True)
        ]
        for name in each[0]:
            parents = zip(walks, each, states, strict=True)
            wanted = [_wanted(pairs, layers[name], state) for pairs, layers, state in parents]
            merged |= each[0][name].tensors(solved(wanted, coefficients, shrinkage), merged)
    return merged


def _wanted(pairs: Iterable[tuple[Walk, ...]], layer: Layer, parent: Tensors) -> ParentLayer:
    """Return what a parent wants of a layer whose inputs are those that the merged network has there."""
    matrix = layer.matrix(parent)
    gram, cross, samples = torch.zeros(()), torch.zeros(()), 0
    for pair in pairs:
        own, now = (walk.inputs(layer) for walk in pair)
        for wanted, rows in zip(layer.rows(own), layer.rows(now), strict=True):
            gram = gram + rows.mT @ rows
            cross = cross + matrix @ wanted.mT @ rows
            samples += rows.shape[1]
    return ParentLayer(matrix, gram / samples, cross / samples)
