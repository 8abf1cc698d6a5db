"""Spectral norms of torch keep unit vectors among the buffers. A mean of such is none, and is made whole again."""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import nn

from roundweave.storage.values.state import State
from roundweave.tasks.networks.objective import Objective, buffers_of
from roundweave.tasks.numerics.unofficial import spectral_norms

ITERATIONS = 100
"""So many power iterations are made; a vector that is not exact by then gives nearly the exact norm."""


def with_unit_vectors(objective: Objective, state: State) -> State:
    """The state with vectors of spectral norms that fit its weights, if they are means of different ones."""
    if not objective.spectral:
        return state
    network = objective.network(state)
    return replace(state, buffers=buffers_of(objective, network, state)) if converge(network) else state


@torch.no_grad()
def converge(network: nn.Module) -> bool:
    """Iterate vectors of spectral norms that are not of length 1 until they fit; returns whether there are any."""
    means = [
        (module, iterate)
        for module, vectors, iterate in spectral_norms(network)
        if any(abs(vector.norm().item() - 1) > 16 * torch.finfo(vector.dtype).eps for vector in vectors)
    ]
    for module, iterate in means:
        training = module.training
        module.train()
        for _ in range(ITERATIONS):
            iterate()
        module.train(training)
    return bool(means)
