"""The tasks that solve a merged network's layers, or distil its parents into it, on examples of their own."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import lru_cache

import torch

from roundweave.storage.checkpoints.writing import write_checkpoint
from roundweave.storage.runs.run import Opener, open_stored
from roundweave.storage.values.lazy import LazyTensors
from roundweave.tasks.matching.averaging import averaging
from roundweave.tasks.matching.solving.grams import Grams, gram_matrices
from roundweave.tasks.matching.solving.layers import Layer
from roundweave.tasks.matching.solving.solve import least_squares, regmean
from roundweave.tasks.merging.gallery import Samples, read_network
from roundweave.tasks.networks.objective import ModelSpec
from roundweave.tasks.numerics.pinning import pinned


def grams_of(
    model: ModelSpec, own: Sequence[Samples], places: Sequence[str], number: int, opened: Opener = open_stored
) -> dict[str, torch.Tensor]:
    """Return the Gram matrices of one network on examples of its own."""
    with pinned(0, threads=1):
        return gram_matrices(
            model.build(), read_network(model, places[number], opened=opened), own[number].every_input
        )


def regressed(
    states: Sequence[LazyTensors],
    grams: Sequence[Grams],
    layers: Mapping[str, Layer],
    coefficients: Sequence[float],
    shrinkage: float,
) -> LazyTensors:
    """Return the mean of aligned networks with its layers solved by RegMean, each as its tensors are asked for."""
    averaged = averaging(states, coefficients)
    owners = {name: layer for layer in layers.values() for name in (layer.weight, layer.bias) if name}

    @lru_cache(maxsize=1)  # a layer's weight and bias are read one after the other
    def solved(weight: str) -> dict[str, torch.Tensor]:
        with pinned(0, threads=1):
            return dict(regmean(states, grams, {weight: layers[weight]}, coefficients, shrinkage))

    def read(name: str) -> torch.Tensor:
        return solved(owners[name].weight)[name] if name in owners else averaged(name)

    return LazyTensors(states[0].names, read, states[0].specs)


def write_least_squares(
    model: ModelSpec,
    own: Sequence[Samples],
    places: Sequence[str],
    coefficients: Sequence[float],
    shrinkage: float,
    out: str,
    _: int,
    opened: Opener = open_stored,
) -> None:
    """Write the mean of aligned networks with its layers solved by PLeaS, on examples of each network's own."""
    with pinned(0, threads=1):
        states = [dict(read_network(model, place, opened=opened)) for place in places]
        inputs = [each.every_input for each in own]
        write_checkpoint(out, least_squares(model.build(), states, inputs, coefficients, shrinkage))
