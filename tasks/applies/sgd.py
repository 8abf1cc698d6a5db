"""Gradient descent as the outer optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks import options as option
from tasks.algebra import Apply
from tasks.applies.schedules import Scheduled
from tasks.numerics import accumulator


@dataclass(frozen=True)
class Sgd(Scheduled, Apply):
    """Gradient descent with momentum, in torch's convention (velocity = momentum x velocity + direction).

    With lr 1 and no momentum, the new parameters are the old ones minus the mean direction, which is FedAvg.
    Nesterov momentum is that of Sutskever et al. 2013, section 2. The state takes over the update's buffers.

    >>> start = State({"float32": torch.tensor([1.0, 2.0])})
    >>> Sgd(lr=0.5)(start, Update({"float32": torch.tensor([2.0, 0.0])})).params["float32"].tolist()
    [0.0, 2.0]
    """

    lr: option.OuterLearningRate = 1.0
    momentum: option.OuterMomentum = 0.0
    nesterov: option.Nesterov = False

    def init(self, params: Vectors) -> Mapping[str, Vectors]:
        """A velocity of zeros if there is momentum, else nothing."""
        return {"velocity": {k: torch.zeros_like(p) for k, p in params.items()}} if self.momentum else {}

    def __call__(self, state: State, update: Update) -> State:
        """Take a step; vectors are (elements,) per dtype, and computed in the accumulator type."""
        lr = self.rate(state)
        params, velocity = {}, {}
        for name, param in state.params.items():
            step = update.direction[name].to(accumulator(name))
            if self.momentum:
                direction, step = step, self.momentum * state.memory["velocity"][name] + step
                velocity[name] = step.to(param.dtype)
                step = direction + self.momentum * step if self.nesterov else step
            params[name] = (param.to(step.dtype) - lr * step).to(param.dtype)
        memory = {"velocity": velocity} if self.momentum else {}
        buffers = update.buffers or state.buffers
        return replace(state, params=params, buffers=buffers, memory=memory, round=state.round + 1)
