"""Outer optimizers: gradient descent with momentum, and adaptive ones, which differ in the second moment."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch

from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, Vectors
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.algorithms.algebra import Apply
from roundweave.tasks.algorithms.applies.schedules import Scheduled
from roundweave.tasks.numerics.dtypes import accumulator
from roundweave.tasks.numerics.pieces import in_pieces


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
    elementwise = True

    def init(self, params: Vectors) -> Slots:
        """A velocity of zeros if there is momentum, else nothing."""
        return {"velocity": {k: torch.zeros_like(p) for k, p in params.items()}} if self.momentum else {}

    @torch.no_grad()
    def __call__(self, state: State, update: Update) -> State:
        """Take a step; vectors are (elements,) per dtype, and computed in the accumulator type."""
        lr = self.rate(state)
        params, velocity = {}, {}

        def descend(param: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            return (param.to(step.dtype) - lr * step).to(param.dtype)

        for name, param in state.params.items():
            step = update.direction[name].to(accumulator(name))
            if self.momentum:
                direction, step = step, self.momentum * state.memory["velocity"][name].to(step.dtype) + step
                velocity[name] = step.to(param.dtype)
                step = direction + self.momentum * step if self.nesterov else step
            params[name] = in_pieces(descend, param, step)
        memory = {"velocity": velocity} if self.momentum else {}
        buffers = update.buffers or state.buffers
        return replace(state, params=params, buffers=buffers, memory=memory, round=state.round + 1)


@dataclass(frozen=True)
class Adaptive(Scheduled, Apply):
    """Base class of the optimizers of Reddi et al. 2021, Algorithm 2, which subtract lr m / (sqrt(v) + tau).

    m is the decaying mean of directions and begins at 0; v is their second moment and begins at tau^2. As in the
    paper, there is no bias correction. A subclass defines the next v. The state takes over the update's buffers.

    >>> class Largest(Adaptive):
    ...     def second(self, before, square):
    ...         return torch.maximum(before, square)
    >>> largest = Largest(lr=2.0, beta1=0.5, tau=1.0)
    >>> start = State({"float32": torch.zeros(1)}, memory=largest.init({"float32": torch.zeros(1)}))
    >>> largest(start, Update({"float32": torch.tensor([3.0])})).params["float32"].item()
    -0.75
    """

    lr: option.OuterLearningRate = 0.01
    beta1: option.FirstDecay = 0.9
    tau: option.Adaptivity = 1e-3

    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """The next second moment, made of the last one and the direction's square; all are (elements,)."""
        raise NotImplementedError

    def init(self, params: Vectors) -> Slots:
        """The initial moments, each a vector (elements,) per dtype."""
        first = {name: torch.zeros_like(param) for name, param in params.items()}
        return {"first": first, "second": {k: torch.full_like(p, self.tau**2) for k, p in params.items()}}

    def __call__(self, state: State, update: Update) -> State:
        """Take a step; vectors are (elements,) per dtype, and computed in the accumulator type."""
        lr = self.rate(state)
        params, firsts, seconds = {}, {}, {}
        for name, param in state.params.items():
            wide = accumulator(name)
            direction = update.direction[name].to(wide)
            first = self.beta1 * state.memory["first"][name].to(wide) + (1 - self.beta1) * direction
            second = self.second(state.memory["second"][name].to(wide), direction.square())
            params[name] = (param.to(wide) - lr * first / (second.sqrt() + self.tau)).to(param.dtype)
            firsts[name], seconds[name] = first.to(param.dtype), second.to(param.dtype)
        memory = {"first": firsts, "second": seconds}
        buffers = update.buffers or state.buffers
        return replace(state, params=params, buffers=buffers, memory=memory, round=state.round + 1)


@dataclass(frozen=True)
class Adam(Adaptive):
    """FedAdam: v is the decaying mean of squares.

    >>> Adam(beta2=0.75).second(torch.tensor(4.0), torch.tensor(8.0)).item()
    5.0
    """

    beta2: option.SecondDecay = 0.99
    elementwise = True

    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """(elements,) and (elements,) -> (elements,)."""
        return self.beta2 * before + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi: v moves towards the square by a fixed fraction of the square, however far they are apart.

    >>> Yogi(beta2=0.75).second(torch.tensor(4.0), torch.tensor(8.0)).item()
    6.0
    """

    beta2: option.SecondDecay = 0.99
    elementwise = True

    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """(elements,) and (elements,) -> (elements,)."""
        return before - (1 - self.beta2) * square * torch.sign(before - square)


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad: v is the sum of squares, and m is simply the last direction.

    >>> Adagrad().second(torch.tensor(4.0), torch.tensor(8.0)).item()
    12.0
    """

    beta1: option.FirstDecay = 0.0
    elementwise = True

    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """(elements,) and (elements,) -> (elements,)."""
        return before + square
