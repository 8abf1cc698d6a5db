"""Merge networks that were trained apart: what runs on the workers, and what is kept."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from storage.checkpoints import read_checkpoint
from storage.commits import Score, UpdateRecord
from storage.digest import match_digest, update_digest
from storage.records import Match, State, TensorSpec, Update, pack
from storage.schema import Schema
from storage.store import RoundStore
from tasks.executors.steps import score, tally
from tasks.matching.activations import Moments, Pair, activation_moments
from tasks.matching.averaging import average
from tasks.matching.groups import Piece, Tensors, UnitGroups
from tasks.matching.repair import has_batch_norm, recompute_batch_norm, rescale
from tasks.models import Objective, layout_of
from tasks.numerics import pinned
from tasks.partition import Partitions

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

    def inputs(self, count: int, partition: int = 0) -> torch.Tensor:
        """The first inputs of a partition's training examples."""
        return self.partitions.load(0, partition).train.inputs[:count]


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
        return sum(c > 0 for c in self.coefficients) > 1


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
    states = [_read(place, gallery.root) for place in blend.places]
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
    inputs = gallery.inputs(gallery.examples)
    if has_batch_norm(network):
        recompute_batch_norm(network, inputs.split(REPAIR_BATCH))
    else:
        rescale(network, [gallery.network(state) for state in states], coefficients, inputs, gallery.units)


@functools.lru_cache(maxsize=8)
def _read(place: str, root: Path) -> dict[str, torch.Tensor]:
    return read_checkpoint(place, root)


def score_blend(gallery: Gallery, blends: Sequence[Blend], number: int) -> Score | None:
    """Score one of the blends on all held-out examples."""
    with pinned(0, threads=1), torch.no_grad():
        network = blended(gallery, blends[number])
        blocks = range(gallery.partitions.split.partitions)
        return score([tally(gallery.objective, network, gallery.partitions.load(0, b).held_out) for b in blocks])


def observe(
    gallery: Gallery, places: Sequence[str], pairs: Sequence[Pair], block: int
) -> dict[Piece, Moments] | None:
    """The moments of the networks' units on a block's share of the examples, None where it is too small a share."""
    inputs = gallery.inputs(gallery.examples // gallery.partitions.split.partitions, block)
    if len(inputs) < gallery.units.batch:
        return None
    with pinned(0, threads=1):
        states = [_read(place, gallery.root) for place in places]
        network = gallery.objective.model.build()
        return activation_moments(network, states, [inputs], gallery.units, pairs)


def summed(parts: Sequence[Mapping[Piece, Moments] | None]) -> dict[Piece, Moments]:
    """The moments of all blocks."""
    total: dict[Piece, Moments] = {}
    for part in parts:
        for piece, moments in (part or {}).items():
            total[piece] = total[piece] + moments if piece in total else moments
    return total


def permutation_specs(matches: Sequence[Match]) -> tuple[TensorSpec, ...]:
    """What is stored of a match, by group of units."""
    first = matches[0].permutation
    return tuple(TensorSpec(n, str(t.dtype).removeprefix("torch."), tuple(t.shape)) for n, t in first.items())


def keep_merge(
    path: Path,
    network: nn.Module,
    states: Sequence[Tensors],
    matches: Sequence[Match],
    merged: Tensors,
    attributes: Mapping[str, Any],
    scored: Score | None,
) -> RoundStore:
    """Store a merge as a run of one round, in which the first network is the state before it.

    Each network is an update, the first one minus itself, with the permutation that was found for it; the merged
    network is the state after the round.
    """
    layout = layout_of(network.requires_grad_(True))
    packed = [(pack(layout.params, state), pack(layout.buffers, state)) for state in states]
    schema = Schema(layout, len(states), matches=permutation_specs(matches))
    initial = State(params=packed[0][0], buffers=packed[0][1])
    store = RoundStore.create(path, schema, 1, attributes, initial)
    records = {}
    for number, ((params, buffers), match) in enumerate(zip(packed, matches, strict=True)):
        direction = {dtype: start - params[dtype] for dtype, start in packed[0][0].items()}
        update = Update(direction, buffers)
        store.write_update(1, number, update)
        store.write_match(1, number, match)
        records[number] = UpdateRecord(update_digest(update), 1, match=match_digest(match))
    state = replace(initial, params=pack(layout.params, merged), buffers=pack(layout.buffers, merged), round=1)
    store.write_state(state)
    store.commit(replace(store.describe(state, "merge", 0), updates=records, score=scored))
    return store
