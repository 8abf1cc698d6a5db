"""The networks of a merge as workers build, observe, average and score them."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import nn

from roundweave.storage.errors import ModelError, failing_as, located
from roundweave.storage.rounds.commits import Score
from roundweave.storage.runs.opening import fitted, open_checkpoint, outline
from roundweave.storage.runs.run import Opener, open_stored
from roundweave.storage.values.lazy import LazyTensors, blocks_of, computed, picked
from roundweave.storage.values.tensors import load_named
from roundweave.tasks.data.examples import Examples, first_tensor
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.matching.averaging import check_coefficients
from roundweave.tasks.matching.groups import Piece, Tensors, UnitGroups
from roundweave.tasks.matching.search.activations import Moments, Pair, activation_moments
from roundweave.tasks.matching.tracing.exporting import Inputs
from roundweave.tasks.merging.averages.interpolations import LinearMean
from roundweave.tasks.merging.averages.recipe import Recipe, combining
from roundweave.tasks.merging.repair import concatenated, repair
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.networks.outputs import output_of, with_output
from roundweave.tasks.networks.pretrained import names_in_network, renamed
from roundweave.tasks.networks.scores import OWN_LOSS
from roundweave.tasks.networks.spectral import converge
from roundweave.tasks.numerics.pinning import derive_seed, pinned
from roundweave.tasks.own_code.code import Code
from roundweave.tasks.rounds.scoring import score, tally


@dataclass(frozen=True)
class Samples:
    """The training examples of some partitions on which networks are run, at most so many `examples` in all."""

    partitions: Partitions
    examples: int

    @property
    def blocks(self) -> range:
        """The numbers of the blocks into which the examples are split."""
        return range(self.partitions.split.partitions)

    def drawn(self, block: int) -> Examples:
        """Return the examples of a block, which is an equal part of the `examples`.

        They are drawn by the seed: the first ones of a partition may be all of one class.
        """
        train = self.partitions.load(0, block)
        count = min(len(train), max(1, self.examples // len(self.blocks)))
        (drawn,) = train.batches(count, 1, self.partitions.split.seed)
        return drawn

    def inputs(self, block: int) -> Inputs:
        """Return the inputs (examples, …) of a block."""
        inputs: Inputs = self.drawn(block).inputs
        return inputs

    @property
    def every_input(self) -> Inputs:
        """The inputs (examples, …) of all blocks."""
        inputs: Inputs = concatenated([self.inputs(block) for block in self.blocks])
        return inputs

    def batches(self, size: int, steps: int, seed: int) -> Iterator[Inputs]:
        """Return the inputs (examples, …) of so many batches of all training examples, the blocks in turn."""
        parts = [(self.partitions.load(0, block), derive_seed(seed, block)) for block in self.blocks]
        each = [train.batches(size, steps, own) for train, own in parts]
        return (next(each[step % len(each)]).inputs for step in range(steps))


@dataclass(frozen=True)
class Gallery(Samples):
    """How a merge's networks are built and where they are read from, and the examples to run them on."""

    objective: Objective
    units: UnitGroups
    root: str
    opened: Opener = open_stored

    def network(self, tensors: Tensors) -> nn.Module:
        """Return a network with these named tensors, in evaluation mode."""
        return loaded(self.objective.model, tensors)

    @property
    def ensemble_loss(self) -> str | Code | None:
        """The loss of an ensemble; None if the networks compute one themselves that is not of labels."""
        rule = self.objective.rule
        if self.objective.loss != OWN_LOSS:
            return self.objective.loss
        return "cross_entropy" if rule.axis and rule.classes and rule.threshold is None else None

    @property
    def is_classifier(self) -> bool:
        """Whether the outputs are logits of classes."""
        return self.ensemble_loss == "cross_entropy"

    def read(self, place: str) -> LazyTensors:
        """Return the named tensors of a file or a stored round, of the network's shapes and types."""
        return read_network(self.objective.model, place, self.root, self.opened)


def read_network(
    model: ModelSpec, place: str, root: str | None = None, opened: Opener = open_stored
) -> LazyTensors:
    """The named tensors of a file or a stored round, whose run is `opened`, of a network's shapes and types."""
    network, tensors = _outlined(model), open_checkpoint(place, root, opened)
    return fitted(renamed(tensors, names_in_network(network, tensors)), outline(network))


def loaded(model: ModelSpec, tensors: Tensors) -> nn.Module:
    """Return a network with these named tensors, in evaluation mode."""
    network = model.build().eval()
    load_named(network, tensors)
    return network


@functools.lru_cache(maxsize=4)
def _outlined(model: ModelSpec) -> nn.Module:
    return model.outlined()


def observe(
    gallery: Gallery, places: Sequence[str], pairs: Sequence[Pair], block: int
) -> dict[Piece, Moments] | None:
    """Return the moments of the networks' activations on a block of examples.

    None if it has less than one batch.
    """
    inputs = gallery.inputs(block)
    if len(first_tensor(inputs)) < gallery.units.batch:
        return None
    with pinned(0, threads=1):
        states = [gallery.read(place) for place in places]
        network = gallery.objective.model.build()
        return activation_moments(network, states, inputs, gallery.units, pairs)


@dataclass(frozen=True)
class Blend:
    """A network to score: the weighted mean or the ensemble of checkpoints, which lie at `places`.

    `solved` is a file of tensors in place of their mean. `recipe` says how each tensor is averaged, if it is not
    the mean; it may need the network that lies at `base`.
    """

    places: tuple[str, ...]
    coefficients: tuple[float, ...]
    how: Literal["mean", "ensemble"] = "mean"
    repair: bool = False
    solved: str | None = None
    recipe: Recipe | None = None
    base: str | None = None

    @property
    def mixed(self) -> bool:
        """Whether more than one checkpoint is in it."""
        return self.solved is not None or self.recipe is not None or sum(c > 0 for c in self.coefficients) > 1


class Ensemble(nn.Module):
    """Gives the mean of networks' outputs; for logits, the logarithm of the mean of their class probabilities.

    `axis` is that of classes. What it gives is of the networks' kind, such as an object with logits.
    """

    def __init__(self, networks: Sequence[nn.Module], logits: bool, axis: int = -1) -> None:
        super().__init__()
        self.networks = nn.ModuleList(networks)
        self.logits = logits
        self.axis = axis

    def forward(self, *inputs: torch.Tensor, **named: torch.Tensor) -> Any:
        """Inputs (examples, …) -> outputs (examples, …); for logits, log probabilities of the same shape."""
        given = [network(*inputs, **named) for network in self.networks]
        outputs = [*map(output_of, given)]
        if not self.logits:
            return with_output(given[0], torch.stack(outputs).mean(0))
        logarithms = torch.stack([one.log_softmax(self.axis) for one in outputs])
        return with_output(given[0], logarithms.logsumexp(0) - math.log(len(outputs)))


def combined_by(blend: Blend, states: Sequence[LazyTensors], base: LazyTensors | None = None) -> LazyTensors:
    """Yield the tensors of a blend of aligned networks, computed block by block where an average is elementwise.

    Raises `UsageError` for wrong numbers of coefficients, or a sum of zero.
    """
    if blend.recipe is None:
        check_coefficients(blend.coefficients, len(states))
    recipe = blend.recipe or dict.fromkeys(states[0], (LinearMean(), blend.coefficients))
    every = [*states] if base is None else [*states, base]

    def stream(name: str) -> Iterator[torch.Tensor]:
        for blocks in zip(*(blocks_of(tensors, name) for tensors in every), strict=True):
            parts = [{name: block} for block in blocks]
            yield combining(recipe, parts[: len(states)], *parts[len(states) :])(name)

    specs = states[0].specs
    by_block, whole = computed(specs, stream), LazyTensors(states[0].names, combining(recipe, states, base), specs)
    return picked({name: (by_block if recipe[name][0].elementwise else whole, name) for name in recipe})


def blended(gallery: Gallery, blend: Blend) -> nn.Module:
    """Build the network of a blend, repaired if the blend asks for it."""
    states = [gallery.read(place) for place in blend.places]
    if blend.how == "ensemble":
        axis = gallery.objective.rule.axis or -1
        return Ensemble([gallery.network(state) for state in states], gallery.is_classifier, axis).eval()
    first = gallery.units.aliases
    base = [gallery.read(blend.base)] if blend.base else []
    mean = gallery.read(blend.solved) if blend.solved else combined_by(blend, states, *base)
    network = gallery.network({name: mean[first.get(name, name)] for name in states[0]})
    converge(network)
    if blend.repair and blend.mixed:
        repair(network, map(gallery.network, states), blend.coefficients, gallery.every_input, gallery.units)
    return network


def score_blend(gallery: Gallery, blends: Sequence[Blend], number: int) -> Score | None:
    """Score one of the blends on all held-out examples."""
    with pinned(0, threads=1), torch.no_grad():
        network, objective = blended(gallery, blends[number]), gallery.objective
        if blends[number].how == "ensemble" and gallery.ensemble_loss:
            objective = replace(objective, loss=gallery.ensemble_loss)
        blocks = gallery.blocks
        held_out = (gallery.partitions.held_out_part(block, block, len(blocks)) for block in blocks)
        with failing_as(lambda error: ModelError(f"scoring failed with {located(error)}")):
            tallies = [each for part in held_out for each in tally(objective, network, part)]
            return score(objective, tallies, threads=1)
