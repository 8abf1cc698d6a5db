"""Plain SGD of several replicas at once."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import Any

import torch

from storage.values.state import State
from storage.values.tensors import Specs, Vectors
from tasks.data.examples import Examples
from tasks.maps.stacking.courses import Course, phases
from tasks.maps.stacking.independence import check_apart
from tasks.maps.stacking.replicas import Replicas, Stacked
from tasks.maps.stepping.backprop import Backprop
from tasks.maps.stepping.watching import settings


@dataclass(frozen=True)
class Arrived:
    """Where replicas arrive: their parameters, (replica, element) by dtype, and the sums of their losses."""

    params: Vectors
    losses: torch.Tensor


def train(stacked: Stacked, state: State, courses: Sequence[Course], lr: float) -> Arrived:
    """Train up to `count` replicas from a state, each along its course.

    Where a replica arrives depends, to the bit, neither on its place nor on the others, nor on how many there
    are: steps are always those of `count`. Raises `ModelError` where that does not hold for the network.
    """
    network = stacked.network(state)
    trained = {name: parameter.detach() for name, parameter in network.trained.items()}
    step = Backprop(stacked, network, lr)
    every = {name: p[:1].repeat(len(courses), *[1] * (p.ndim - 1)) for name, p in trained.items()}
    losses = torch.zeros(len(courses))
    for phase in phases(courses, stacked.count):
        members = torch.tensor(phase.members)
        places = torch.cat([members, members[:1].expand(stacked.count - len(members))])
        for name, parameter in trained.items():
            torch.index_select(every[name], 0, places, out=parameter)
        _check_once(stacked, network, phase.batches[0])
        total = losses[places]
        for batch in phase.batches:
            total += step(batch)
        for name, parameter in trained.items():
            every[name][members] = parameter[: len(members)]
        losses[members] = total[: len(members)]
    return Arrived(_packed(stacked.objective.layout.params, every), losses)


def _check_once(stacked: Stacked, network: Replicas, batch: Examples) -> None:
    """See to it that replicas are independent, once in a process for each kind of step."""
    kind = tuple((t.shape, t.dtype) for t in (batch.inputs, batch.targets))
    known = _independent(stacked, settings())
    if kind not in known:
        check_apart(stacked, network, batch)
        known.add(kind)


@functools.lru_cache(maxsize=16)
def _independent(stacked: Stacked, settings: tuple[Any, ...]) -> set[Any]:
    """The kinds of steps, by the shapes of a batch, in which replicas were found to be independent."""
    return set()


def _packed(specs: Specs, tensors: Mapping[str, torch.Tensor]) -> Vectors:
    """Named tensors (replica, *shape) as (replica, element) by dtype, as `pack` does for one."""
    by_dtype = sorted(specs, key=lambda spec: spec.dtype)
    return {
        dtype: torch.cat([tensors[spec.name].flatten(1) for spec in group], 1)
        for dtype, group in groupby(by_dtype, key=lambda spec: spec.dtype)
    }
