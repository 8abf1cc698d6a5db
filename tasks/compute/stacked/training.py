"""Train several replicas at once by plain SGD."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import torch

from storage.values.state import State
from storage.values.tensors import Specs, Vectors
from tasks.compute.stacked.courses import Course, phases
from tasks.compute.stacked.replicas import Stacked
from tasks.maps.backprop import backprop, descend


@dataclass(frozen=True)
class Arrived:
    """Replicas after training: their parameters, (replica, element) by dtype, and their losses.

    `losses`, (replica,), are the sums over all steps.
    """

    params: Vectors
    losses: torch.Tensor


def train(stacked: Stacked, state: State, courses: Sequence[Course], lr: float) -> Arrived:
    """Train up to `count` replicas from a state with learning rate `lr`, each on the batches of its course.

    The bits of a replica do not depend on its place, on the other replicas, or on how many there are: each step is
    always one of `count` replicas. `check_stackable` tries whether that holds for a network.
    """
    network = stacked.network(state)
    parameters = list(network.trained.values())
    trained = {name: parameter.detach() for name, parameter in network.trained.items()}
    every = {name: p[:1].repeat(len(courses), *[1] * (p.ndim - 1)) for name, p in trained.items()}
    losses = torch.zeros(len(courses))
    for phase in phases(courses, stacked.count):
        members = torch.tensor(phase.members)
        places = torch.cat([members, members[:1].expand(stacked.count - len(members))])
        for name, parameter in trained.items():
            torch.index_select(every[name], 0, places, out=parameter)
        total = losses[places]
        for batch in phase.batches:
            total += backprop(stacked, network, batch)
            descend(parameters, lr)
        for name, parameter in trained.items():
            every[name][members] = parameter[: len(members)]
        losses[members] = total[: len(members)]
    return Arrived(_packed(stacked.objective.layout.params, every), losses)


def _packed(specs: Specs, tensors: Mapping[str, torch.Tensor]) -> Vectors:
    """Join named tensors (replica, *shape) to (replica, element) by dtype, in the order that `pack` has."""
    by_dtype = sorted(specs, key=lambda spec: spec.dtype)
    return {
        dtype: torch.cat([tensors[spec.name].flatten(1) for spec in group], 1)
        for dtype, group in groupby(by_dtype, key=lambda spec: spec.dtype)
    }
