"""Gram matrices of the inputs of a network's layers: all that a merge must know of examples it does not see."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial

import torch
from torch import nn

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.groups import Permutation, Tensors, UnitGroups
from roundweave.tasks.matching.solving.layers import Layer, find_layers
from roundweave.tasks.matching.tapping import Taps, batch_size, first_batch, whole_batches
from roundweave.tasks.matching.tracing.exporting import Inputs, exported

Grams = Mapping[str, torch.Tensor]
"""For each layer, by the name of its weight, the mean product of its inputs: float32 (group, in, in).

A last row and column, of the layer's bias, has the inputs' means.
"""


def layers_of(model: nn.Module, inputs: Inputs) -> dict[str, Layer]:
    """The layers of a module that a solve can reach, by the name of their weight, in the order of its graph."""
    return find_layers(exported(model, inputs))


@dataclass(frozen=True)
class Observer:
    """Observes the inputs of a network's layers in batches of the shapes with which it was traced."""

    taps: Taps
    layers: Mapping[str, Layer]

    @classmethod
    def of(cls, model: nn.Module, batch: Inputs) -> Observer:
        """Return the observer of a module for batches like this one."""
        program = exported(model, batch)
        layers = find_layers(program)
        # Two layers may read one tensor, which was written in place between them.
        return cls(Taps.read(program, {name: (each.inputs, each.node) for name, each in layers.items()}), layers)

    def grams(self, state: Tensors, inputs: Inputs) -> dict[str, torch.Tensor]:
        """Return the `Grams` of a network with these named tensors on inputs (examples, …).

        Examples beyond the last whole batch are not used. Raises `UsageError` if a layer's inputs are not finite.
        """
        sums: dict[str, torch.Tensor] = {}
        samples = dict.fromkeys(self.layers, 0)
        for part in whole_batches(inputs, batch_size(inputs)):
            values = self.taps.values(state, part)
            for name, layer in self.layers.items():
                for rows in layer.rows(values[name]):
                    product = rows.mT @ rows
                    sums[name] = sums[name] + product if name in sums else product
                    samples[name] += rows.shape[1]
        means = {name: (total / samples[name]).float() for name, total in sums.items()}
        for name, mean in means.items():
            if not mean.isfinite().all():
                raise UsageError(f"the inputs of {name} are not finite on these examples; check both")
        return means


def gram_matrices(model: nn.Module, state: Tensors, inputs: Inputs) -> dict[str, torch.Tensor]:
    """The `Grams` of a network with these named tensors on inputs (examples, …), as an `Observer` gives them."""
    return Observer.of(model, first_batch(inputs, batch_size(inputs))).grams(state, inputs)


def permuted_grams(
    grams: Grams, layers: Mapping[str, Layer], units: UnitGroups, permutation: Permutation
) -> dict[str, torch.Tensor]:
    """Return the `Grams` of a network after `units.permute`: a layer's inputs are in the order of its columns."""
    if any(table.is_floating_point() for table in permutation.values()):
        raise UsageError("Gram matrices need a one-to-one match, and this one is mixed; leave soft out")
    for name in grams.keys() - layers.keys():
        raise UsageError(
            f"there is a Gram matrix of {name}, which is no layer of this network; make it of this one"
        )
    return {name: _permuted(gram, layers[name], units, permutation) for name, gram in grams.items()}


def _permuted(gram: torch.Tensor, layer: Layer, units: UnitGroups, permutation: Permutation) -> torch.Tensor:
    shape = units.tensors[layer.weight]
    # Which element of the weight came to each place says which input came to each column, and which group's.
    numbers = torch.arange(torch.Size(shape).numel()).reshape(shape)
    place = partial(Layer.matrix, Layer(layer.inputs, "w", None, layer.transposed, layer.window, layer.groups))
    home = place({"w": numbers}).long()
    columns = home.shape[2]
    # Written in the order of the matrix, an element's number tells its row and its column.
    number_of = torch.empty(numbers.numel(), dtype=torch.int64)
    number_of[home.flatten()] = torch.arange(numbers.numel())
    came = number_of[place({"w": units.permuted(layer.weight, {layer.weight: numbers}, permutation)}).long()]
    group, column = came // (home.shape[1] * columns), came % columns
    if not ((column == column[:, :1]).all() and (group == group[:, :1, :1]).all()):
        raise UsageError(f"the units of {layer.weight} are in orders of each row's own; merge without a solve")
    order = column[:, 0]
    if gram.shape[-1] > columns:
        order = torch.cat([order, torch.full((layer.groups, 1), columns)], 1)
    moved = gram[group[:, 0, 0]]
    return moved.gather(1, order[:, :, None].expand_as(moved)).gather(2, order[:, None, :].expand_as(moved))
