"""A map that computes a single gradient of a partition."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors, pack
from tasks import options as option
from tasks.algebra import Map
from tasks.data.examples import Examples
from tasks.maps.backprop import backprop
from tasks.maps.batches import batches
from tasks.networks.objective import Objective, buffers_of


@dataclass(frozen=True)
class Gradient(Map):
    """The gradient of the mean loss over the partition, or over one random batch of it.

    The weight is the partition's number of examples, so that the mean over partitions is the gradient over all
    examples; with batches, that is its expectation.

    >>> from tasks.networks.objective import ModelSpec
    >>> objective = Objective(ModelSpec("linear", (2,), 1, "float32", seed=0), "mse")
    >>> examples = Examples(torch.ones(3, 2), torch.zeros(3))
    >>> update = Gradient()(objective, objective.initial(), examples, {}, 0)
    >>> update.direction["float32"].shape, update.weight
    (torch.Size([3]), 3)
    """

    batch_size: option.BatchSize = None

    def __post_init__(self) -> None:
        option.check_options(self)

    def __call__(
        self,
        objective: Objective,
        state: State,
        examples: Examples,
        carry: Mapping[str, Vectors],
        seed: int,
    ) -> Update:
        """Do one forward and one backward pass; the direction is one vector (elements,) per dtype."""
        network = objective.network(state)
        batch = next(batches(examples, self.batch_size, 1, seed))
        loss = backprop(objective, network, batch)
        gradients = {
            name: torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
            for name, parameter in network.named_parameters()
        }
        return Update(
            direction=pack(objective.layout.params, gradients),
            buffers=buffers_of(network, objective.layout),
            weight=len(examples),
            metrics={"train_loss": loss.item()},
        )
