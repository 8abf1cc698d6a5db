"""What the merging of some networks shares: how they are built, read, and shown examples."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import nn

from storage.runs.checkpoints import fitted, open_checkpoint, outline
from storage.values.tensors import LazyTensors, load_named
from tasks.data.partitions import Partitions
from tasks.matching.groups import Tensors, UnitGroups
from tasks.networks.objective import ModelSpec, Objective


@dataclass(frozen=True)
class Gallery:
    """How networks are built, where they are read from, the examples, and how many of them are looked at."""

    objective: Objective
    partitions: Partitions
    units: UnitGroups
    examples: int
    root: str

    def network(self, tensors: Tensors) -> nn.Module:
        """A network with these named tensors, of the network's shapes, evaluating."""
        network = self.objective.model.build().eval()
        load_named(network, tensors)
        return network

    @property
    def blocks(self) -> range:
        """The numbers of the blocks of examples."""
        return range(self.partitions.split.partitions)

    def inputs(self, block: int) -> torch.Tensor:
        """The inputs (examples, …) of a block's share of the examples that are looked at."""
        return self.partitions.load(0, block).train.inputs[: max(1, self.examples // len(self.blocks))]

    def read(self, place: str) -> LazyTensors:
        """The named tensors at a place, of the network's shapes and types; `place` as on the command."""
        return fitted(open_checkpoint(place, self.root), _expected(self.objective.model))


@functools.lru_cache(maxsize=4)
def _expected(model: ModelSpec) -> dict[str, torch.Tensor]:
    return outline(model.build().state_dict())
