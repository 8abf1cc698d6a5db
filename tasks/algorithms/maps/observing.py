"""A map that also observes the inputs of its network's layers, for a reduce that solves them."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, Specs, TensorSpec, pack
from roundweave.tasks.algorithms.algebra import as_given
from roundweave.tasks.algorithms.maps.wrapping import Wrapping
from roundweave.tasks.data.examples import Tensors
from roundweave.tasks.networks.objective import arrived_tensors

if TYPE_CHECKING:  # only a run that solves imports the matching
    from roundweave.tasks.matching.solving.grams import Observer
    from roundweave.tasks.matching.solving.layers import Layer


@dataclass(frozen=True)
class Observation:
    """The trained layers of a run's network by weight, and the specs of their Gram matrices (group, in, in)."""

    layers: Mapping[str, Layer]
    specs: Specs


@functools.lru_cache(maxsize=2)
def observation_of(objective: Any, partitions: Any) -> Observation:
    """Return the observation of a run's network. Raises `UsageError` if no layer of it is trained."""
    from roundweave.tasks.matching.solving.grams import layers_of

    network, frozen = objective.fresh(), {spec.name for spec in objective.layout.frozen}
    layers = {
        name: layer
        for name, layer in layers_of(network, partitions.sample(0).inputs).items()
        if not frozen & {name, layer.bias}
    }
    if not layers:
        raise UsageError("the network has no linear or convolutional layer that is trained; give another reduce")
    matrices = {name: layer.matrix(network.state_dict()) for name, layer in layers.items()}
    shapes = {name: (len(each), each.shape[2], each.shape[2]) for name, each in matrices.items()}
    return Observation(layers, tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items()))


@dataclass(frozen=True)
class WithGrams(Wrapping):
    """A map whose updates have the Gram matrices of the trained network's layers on the partition's examples.

    At most `examples` examples are taken, drawn by the map's seed. Call `bound` with a run's network first.

    >>> from roundweave import LocalSteps
    >>> WithGrams(LocalSteps(local_steps=5)).pseudo_gradient
    True
    """

    examples: int = 1000
    observation: Observation | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.map.pseudo_gradient:
            raise UsageError(
                f"regmean reduces networks, and map {as_given(self.map)} sends none; give local steps"
            )

    @property
    def observes(self) -> Specs:
        """A float32 matrix (group, in, in) for each layer, by the name of its weight."""
        return () if self.observation is None else self.observation.specs

    def bound(self, objective: Any, partitions: Any) -> WithGrams:
        """Return the map, bound to the layers of a run's network."""
        return replace(super().bound(objective, partitions), observation=observation_of(objective, partitions))

    def __call__(self, objective: Any, state: State, examples: Any, carry: Slots, seed: int) -> Update:
        """Return the map's update, with the observed matrices."""
        update = self.map(objective, state, examples, carry, seed)
        arrived = arrived_tensors(objective.layout, state, update)
        (drawn,) = examples.batches(min(self.examples, len(examples)), 1, seed)
        grams = _observer(objective, _forms(drawn.inputs)).grams(arrived, drawn.inputs)
        return replace(update, observed=pack(self.observes, grams))


Forms = tuple[tuple[str, tuple[int, ...], torch.dtype], ...]
"""The names, shapes and types of inputs; a single tensor has no name."""


def _forms(inputs: Tensors) -> Forms:
    """Return the forms of a batch of inputs (examples, …)."""
    from roundweave.tasks.matching.tapping import batch_size

    named = inputs if isinstance(inputs, Mapping) else {"": inputs}
    size = batch_size((*named.values(),))
    return tuple((name, (size, *t.shape[1:]), t.dtype) for name, t in named.items())


@functools.lru_cache(maxsize=8)
def _observer(objective: Any, forms: Forms) -> Observer:
    """Return the observer of a run's networks on inputs of these forms, cached because tracing is slow."""
    from roundweave.tasks.matching.solving.grams import Observer

    inputs = {name: torch.zeros(shape, dtype=dtype) for name, shape, dtype in forms}
    return Observer.of(objective.fresh(), inputs if "" not in inputs else (inputs[""],))
