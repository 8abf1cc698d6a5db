"""The gallery of a merge: how its networks are built, read, and observed on examples."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import nn

from storage.runs.checkpoints import fitted, open_checkpoint, outline
from storage.values.tensors import LazyTensors, load_named
from tasks.data.partitions import Partitions
from tasks.matching.groups import Piece, Tensors, UnitGroups
from tasks.matching.search.activations import Moments, Pair, activation_moments
from tasks.networks.objective import ModelSpec, Objective
from tasks.numerics import pinned


@dataclass(frozen=True)
class Gallery:
    """How a merge's networks are built and where they are read from, and how many `examples` to run them on."""

    objective: Objective
    partitions: Partitions
    units: UnitGroups
    examples: int
    root: str

    def network(self, tensors: Tensors) -> nn.Module:
        """A network with these named tensors, in evaluation mode."""
        network = self.objective.model.build().eval()
        load_named(network, tensors)
        return network

    @property
    def blocks(self) -> range:
        """The numbers of the blocks into which the examples are split."""
        return range(self.partitions.split.partitions)

    def inputs(self, block: int) -> torch.Tensor:
        """The inputs (examples, …) of a block, which is an equal part of the `examples`."""
        return self.partitions.load(0, block).train.inputs[: max(1, self.examples // len(self.blocks))]

    def read(self, place: str) -> LazyTensors:
        """The named tensors of a file or a stored round, of the network's shapes and types."""
        return fitted(open_checkpoint(place, self.root), _expected(self.objective.model))


@functools.lru_cache(maxsize=4)
def _expected(model: ModelSpec) -> dict[str, torch.Tensor]:
    return outline(model.build().state_dict())


def observe(
    gallery: Gallery, places: Sequence[str], pairs: Sequence[Pair], block: int
) -> dict[Piece, Moments] | None:
    """The moments of the networks' activations on a block of examples; None if it has less than one batch."""
    inputs = gallery.inputs(block)
    if len(inputs) < gallery.units.batch:
        return None
    with pinned(0, threads=1):
        states = [gallery.read(place) for place in places]
        network = gallery.objective.model.build()
        return activation_moments(network, states, [inputs], gallery.units, pairs)
