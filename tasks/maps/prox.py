"""Local training that is held near the round's start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors, views
from tasks import options as option
from tasks.data.examples import Examples
from tasks.maps.local_steps import LocalSteps
from tasks.networks.objective import Objective


@dataclass(frozen=True)
class FedProx(LocalSteps):
    """Local training with (mu / 2) |w - w_t|^2 added to the loss (Li et al. 2020, Algorithm 2).

    w_t are the parameters at the round's start. With mu 0 the bits are those of plain local training.

    >>> from tasks.networks.objective import ModelSpec
    >>> objective = Objective(ModelSpec("linear", (2,), 1, "float32", seed=0), "mse")
    >>> examples = Examples(torch.ones(3, 2), torch.zeros(3))
    >>> maps = (FedProx(local_steps=9, mu=mu) for mu in (0.0, 1.0, 5.0))
    >>> updates = [map(objective, objective.initial(), examples, {}, 0) for map in maps]
    >>> far, near, nearest = (update.direction["float32"].norm().item() for update in updates)
    >>> far > near > nearest
    True
    """

    mu: option.Proximity = 0.1

    def __call__(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """Train on the partition; the direction is one vector (elements,) per dtype."""
        start = views(objective.layout.params, state.params)

        def pull(name: str, parameter: torch.Tensor) -> torch.Tensor:
            return self.mu * (parameter - start[name])

        return self.walk(objective, state, examples, seed, pull if self.mu else None)[0]
