"""Networks that a merge may give: blends of checkpoints, repaired and scored."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from torch import nn

from storage.rounds.commits import Score
from storage.runs.checkpoints import read_checkpoint
from storage.runs.names import stored_round
from storage.runs.run import open_run
from tasks.data.partitions import Partitions
from tasks.matching.averaging import average
from tasks.matching.groups import Tensors, UnitGroups
from tasks.matching.repair import has_batch_norm, recompute_batch_norm, rescale
from tasks.networks.objective import ModelSpec, Objective
from tasks.numerics import pinned
from tasks.rounds.steps import score, tally

REPAIR_BATCH = 250
"""Examples that go through a network at once where its statistics are recomputed."""


@dataclass(frozen=True)
class Gallery:
    """What the merging of some networks shares: how they are built, examples, and how many are looked at."""

    objective: Objective
    partitions: Partitions
    units: UnitGroups
    examples: int
    root: Path

    def network(self, tensors: Tensors) -> nn.Module:
        """A network with these tensors, evaluating."""
        network = self.objective.model.build().eval()
        network.load_state_dict(tensors)
        return network

    @property
    def blocks(self) -> range:
        """The numbers of the blocks of examples."""
        return range(self.partitions.split.partitions)

    def inputs(self, block: int) -> torch.Tensor:
        """The inputs of a block's share of the examples that are looked at."""
        return self.partitions.load(0, block).train.inputs[: max(1, self.examples // len(self.blocks))]

    def read(self, place: str) -> dict[str, torch.Tensor]:
        """The tensors at a place as the network takes them."""
        return _read(place, self.root, self.objective.model, _stamp(place, self.root))


@dataclass(frozen=True)
class Blend:
    """A network to score: the weighted mean of checkpoints, or an ensemble of them; `places` as on the command."""

    places: tuple[str, ...]
    coefficients: tuple[float, ...]
    how: Literal["mean", "ensemble"] = "mean"
    repair: bool = False
    layers: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @property
    def mixed(self) -> bool:
        """Whether it is more than one of the checkpoints as it is."""
        every = [self.coefficients, *dict(self.layers).values()]
        return len({i for given in every for i, c in enumerate(given) if c > 0}) > 1


class Ensemble(nn.Module):
    """The mean of networks' outputs; of class probabilities, as their logarithm, where outputs are logits."""

    def __init__(self, networks: Sequence[nn.Module], logits: bool) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.logits = logits

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Run all of them."""
        outputs = torch.stack([network(inputs) for network in self.networks])
        if not self.logits:
            return outputs.mean(0)
        return torch.log_softmax(outputs, -1).logsumexp(0) - math.log(len(self.networks))


def blended(gallery: Gallery, blend: Blend) -> nn.Module:
    """The network of a blend, repaired where it asks for it."""
    states = [gallery.read(place) for place in blend.places]
    if blend.how == "ensemble":
        logits = gallery.objective.loss == "cross_entropy"
        return Ensemble([gallery.network(state) for state in states], logits).eval()
    network = gallery.network(average(states, blend.coefficients, dict(blend.layers)))
    if blend.repair and blend.mixed:
        _repair(gallery, network, states, blend.coefficients)
    return network


def _repair(
    gallery: Gallery, network: nn.Module, states: Sequence[Tensors], coefficients: Sequence[float]
) -> None:
    inputs = torch.cat([gallery.inputs(block) for block in gallery.blocks])
    if has_batch_norm(network):
        # Batches of nearly one size: each counts the same, and one of a single example has no variance.
        recompute_batch_norm(network, inputs.chunk(math.ceil(len(inputs) / REPAIR_BATCH)))
    else:
        rescale(network, [gallery.network(state) for state in states], coefficients, inputs, gallery.units)


def fitted(tensors: Tensors, expected: Tensors) -> dict[str, torch.Tensor]:
    """Tensors that passed `check_checkpoint`, in the types of its network, and absent integer scalars of it."""
    return {name: tensors.get(name, wanted).to(wanted.dtype) for name, wanted in expected.items()}


@functools.lru_cache(maxsize=8)
def _read(place: str, root: Path, model: ModelSpec, stamp: str) -> dict[str, torch.Tensor]:
    return fitted(read_checkpoint(place, root), model.build().state_dict())


def _stamp(place: str, root: Path) -> str:
    """What changes when a file is written anew, or a run goes on: a worker lives longer than one merge."""
    if stored := stored_round(place):
        run, number = stored
        return open_run(run, root).round(number).commit.state
    status = Path(place).stat()
    return f"{status.st_mtime_ns} {status.st_size}"


def score_blend(gallery: Gallery, blends: Sequence[Blend], number: int) -> Score | None:
    """Score one of the blends on all held-out examples."""
    with pinned(0, threads=1), torch.no_grad():
        network = blended(gallery, blends[number])
        held_out = (gallery.partitions.load(0, block).held_out for block in gallery.blocks)
        return score([tally(gallery.objective, network, examples) for examples in held_out])
