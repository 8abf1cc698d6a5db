"""Outer optimizers: gradient descent with momentum, and adaptive ones, which differ in the second moment."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, Vectors
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.algorithms.algebra import Apply, says
from roundweave.tasks.algorithms.applies.schedules import Scheduled
from roundweave.tasks.numerics.pieces import accumulator, in_pieces


@dataclass(frozen=True)
class KeepExtras(Apply):
    """Wraps another apply, and accumulates the mean of the extras over all partitions in its memory.

    Extras are changes. The mean of a round's extras is multiplied by ``|S| / N``, the share of the `partitions`
    whose updates were accepted, and added (Karimireddy et al. 2020, Algorithm 1, line 17). If `of_all` is False,
    the mean is added as it is. Before round 1 the accumulated extras are zeros. The maps of the next round can
    read them, for example SCAFFOLD's control variate.

    >>> from roundweave.tasks.algorithms.applies.optimizers import Sgd
    >>> KeepExtras(Sgd(), ("control",)).init({"float32": torch.ones(2)})
    {'control': {'float32': tensor([0., 0.])}}
    """

    apply: Apply
    slots: tuple[str, ...]
    partitions: int | None = None
    of_all: bool = True

    @property
    def elementwise(self) -> bool:
        """Whether the inner apply is elementwise. Extras are added up by element."""
        return says(self.apply, "elementwise")

    @property
    def keeps(self) -> tuple[str, ...]:
        """The extras in the slots of this apply and of the inner apply."""
        return (*self.apply.keeps, *self.slots)

    def bound(self, objective: Any, partitions: Any) -> Self:
        """Return a copy that knows the number of partitions, with a bound inner apply."""
        inner = self.apply.bound(objective, partitions)
        return replace(self, apply=inner, partitions=partitions.split.partitions if self.of_all else None)

    def init(self, params: Vectors) -> Slots:
        """Return the memory of the inner apply, and zeros (elements,) per dtype for each of the extras."""
        zeros = {slot: {k: torch.zeros_like(p) for k, p in params.items()} for slot in self.slots}
        inner = self.apply.init(params)
        if both := inner.keys() & zeros.keys():
            raise UsageError(f"both the apply and its extras have a slot {min(both)}; give one another name")
        return {**inner, **zeros}

    @torch.no_grad()
    def __call__(self, state: State, update: Update) -> State:
        """Call the inner apply, then add the extras. Vectors are (elements,) per dtype."""
        if lacking := set(self.slots) - update.extras.keys():
            raise UsageError(f"the apply keeps extras {sorted(lacking)}, which the map does not send")
        after, share = self.apply(state, update), update.count / (self.partitions or update.count)
        kept = {
            slot: {
                k: (vector.to(accumulator(k)) + share * update.extras[slot][k]).to(vector.dtype)
                for k, vector in state.memory[slot].items()
            }
            for slot in self.slots
        }
        return replace(after, memory={**after.memory, **kept})


@dataclass(frozen=True)
class Drift(Apply):
    """The mean of the networks, minus the drift of the partitions so far (FedDyn, Acar et al. 2021, Algorithm 1).

    The drift is the paper's h / alpha. In each round it grows by the mean direction times ``|S| / N``, the share
    of the partitions whose updates were accepted. The state takes over the update's buffers.
    """

    partitions: int | None = None
    elementwise = True

    def bound(self, objective: Any, partitions: Any) -> Drift:
        """Return a copy that knows the number of partitions."""
        return replace(self, partitions=partitions.split.partitions)

    def init(self, params: Vectors) -> Slots:
        """Return a drift of zeros (elements,) per dtype."""
        return {"drift": {name: torch.zeros_like(vector) for name, vector in params.items()}}

    @torch.no_grad()
    def __call__(self, state: State, update: Update) -> State:
        """Take a step. Vectors are (elements,) per dtype, computed in the accumulator type."""
        share, params, drift = update.count / (self.partitions or update.count), {}, {}
        for name, param in state.params.items():
            step = update.direction[name].to(wide := accumulator(name))
            grown = state.memory["drift"][name].to(wide) + share * step
            params[name] = (param.to(wide) - step - grown).to(param.dtype)
            drift[name] = grown.to(param.dtype)
        buffers = update.buffers or state.buffers
        return replace(state, params=params, buffers=buffers, memory={"drift": drift}, round=state.round + 1)


def kept_memory(apply: Apply, state: State) -> Slots:
    """Return an apply's memory in a given state: the state's vectors of the same names, else new ones.

    Vectors are (element,) by dtype.

    >>> import torch
    >>> from roundweave.tasks.algorithms.applies.optimizers import Sgd
    >>> state = State({"float32": torch.zeros(1)}, memory={"first": {"float32": torch.ones(1)}})
    >>> kept_memory(Sgd(momentum=0.9), state)
    {'velocity': {'float32': tensor([0.])}}
    """
    return {slot: state.memory.get(slot, vectors) for slot, vectors in apply.init(state.params).items()}


@dataclass(frozen=True)
class Sgd(Scheduled, Apply):
    """Gradient descent with momentum in torch's convention: velocity = momentum x velocity + direction.

    With lr 1 and no momentum, the new parameters are the old ones minus the mean direction, which is FedAvg.
    Nesterov momentum follows Sutskever et al. 2013, section 2. The state takes over the update's buffers.

    >>> start = State({"float32": torch.tensor([1.0, 2.0])})
    >>> Sgd(lr=0.5)(start, Update({"float32": torch.tensor([2.0, 0.0])})).params["float32"].tolist()
    [0.0, 2.0]
    """

    lr: option.OuterLearningRate = 1.0
    momentum: option.OuterMomentum = 0.0
    nesterov: option.Nesterov = False
    elementwise = True

    def init(self, params: Vectors) -> Slots:
        """Return a velocity of zeros if there is momentum, else no slots."""
        return {"velocity": {k: torch.zeros_like(p) for k, p in params.items()}} if self.momentum else {}

    @torch.no_grad()
    def __call__(self, state: State, update: Update) -> State:
        """Take a step. Vectors are (elements,) per dtype, computed in the accumulator type."""
        lr = self.rate(state)
        params, velocity = {}, {}

        def descend(param: torch.Tensor, step: torch.Tensor) -> torch.Tensor:
            taken = lr * step
            return torch.sub(param.to(step.dtype), taken, out=taken).to(param.dtype)

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

    m is the decaying mean of directions and begins at 0. v is the second moment and begins at tau^2. As in the
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
        """Return the next second moment, given the last one and the direction's square. All are (elements,)."""
        raise NotImplementedError

    def init(self, params: Vectors) -> Slots:
        """Return the initial moments, each a vector (elements,) per dtype."""
        first = {name: torch.zeros_like(param) for name, param in params.items()}
        return {"first": first, "second": {k: torch.full_like(p, self.tau**2) for k, p in params.items()}}

    def __call__(self, state: State, update: Update) -> State:
        """Take a step. Vectors are (elements,) per dtype, computed in the accumulator type."""
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
    """FedAdam (Reddi et al. 2021): v is the decaying mean of squares.

    >>> Adam(beta2=0.75).second(torch.tensor(4.0), torch.tensor(8.0)).item()
    5.0
    """

    beta2: option.SecondDecay = 0.99
    elementwise = True

    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Return the next second moment (elements,), given the last one and the direction's square."""
        return self.beta2 * before + (1 - self.beta2) * square


@dataclass(frozen=True)
class Yogi(Adaptive):
    """FedYogi (Reddi et al. 2021): v moves towards the square by a fixed fraction of the square, at any distance.

    >>> Yogi(beta2=0.75).second(torch.tensor(4.0), torch.tensor(8.0)).item()
    6.0
    """

    beta2: option.SecondDecay = 0.99
    elementwise = True

    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Return the next second moment (elements,), given the last one and the direction's square."""
        return before - (1 - self.beta2) * square * torch.sign(before - square)


@dataclass(frozen=True)
class Adagrad(Adaptive):
    """FedAdagrad (Reddi et al. 2021): v is the sum of squares, and m is the last direction.

    >>> Adagrad().second(torch.tensor(4.0), torch.tensor(8.0)).item()
    12.0
    """

    beta1: option.FirstDecay = 0.0
    elementwise = True

    def second(self, before: torch.Tensor, square: torch.Tensor) -> torch.Tensor:
        """Return the next second moment (elements,), given the last one and the direction's square."""
        return before + square
