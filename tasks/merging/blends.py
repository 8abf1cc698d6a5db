"""Blends: networks that a merge may give, built from checkpoints, repaired and scored."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import nn

from storage.errors import ModelError, failing_as, located
from storage.rounds.commits import Score
from tasks.matching.averaging import average
from tasks.merging.gallery import Gallery
from tasks.merging.repair import repair
from tasks.numerics import pinned
from tasks.rounds.scoring import score, tally


@dataclass(frozen=True)
class Blend:
    """A network to score: the weighted mean or the ensemble of checkpoints, which lie at `places`.

    `layers` has separate coefficients for some layers.
    """

    places: tuple[str, ...]
    coefficients: tuple[float, ...]
    how: Literal["mean", "ensemble"] = "mean"
    repair: bool = False
    layers: tuple[tuple[str, tuple[float, ...]], ...] = ()

    @property
    def mixed(self) -> bool:
        """Whether more than one checkpoint has a coefficient above 0."""
        every = [self.coefficients, *dict(self.layers).values()]
        return len({i for given in every for i, c in enumerate(given) if c > 0}) > 1


class Ensemble(nn.Module):
    """The mean of networks' outputs; for logits, the logarithm of the mean of their class probabilities."""

    def __init__(self, networks: Sequence[nn.Module], logits: bool) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.logits = logits

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs (examples, …) -> outputs (examples, …); for logits, log probabilities (examples, classes)."""
        outputs = torch.stack([network(inputs) for network in self.networks])
        if not self.logits:
            return outputs.mean(0)
        return torch.log_softmax(outputs, -1).logsumexp(0) - math.log(len(self.networks))


def blended(gallery: Gallery, blend: Blend) -> nn.Module:
    """Build the network of a blend, repaired if the blend asks for it."""
    states = [gallery.read(place) for place in blend.places]
    if blend.how == "ensemble":
        logits = gallery.objective.loss == "cross_entropy"
        return Ensemble([gallery.network(state) for state in states], logits).eval()
    network = gallery.network(average(states, blend.coefficients, dict(blend.layers)))
    if blend.repair and blend.mixed:
        inputs = torch.cat([gallery.inputs(block) for block in gallery.blocks])
        repair(network, map(gallery.network, states), blend.coefficients, inputs, gallery.units)
    return network


def score_blend(gallery: Gallery, blends: Sequence[Blend], number: int) -> Score | None:
    """Score one of the blends on all held-out examples."""
    with pinned(0, threads=1), torch.no_grad():
        network = blended(gallery, blends[number])
        held_out = (gallery.partitions.load(0, block).held_out for block in gallery.blocks)
        with failing_as(lambda error: ModelError(f"scoring failed with {located(error)}")):
            tallies = [each for part in held_out for each in tally(gallery.objective, network, part)]
            return score(gallery.objective, tallies, threads=1)
