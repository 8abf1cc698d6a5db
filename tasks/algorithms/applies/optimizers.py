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
    """Wraps another apply, and keeps in its memory the mean over all partitions of what their extras add up to.

    Extras are changes: the mean of a round's is added in the proportion of the `partitions` whose updates were
    accepted, |S| / N in Karimireddy et al. 2020, Algorithm 1, line 17. If not `of_all`, it is added as it is, so
    that the mean is that over those of a round, whoever took part. Before round 1 they are zeros. The maps of the
    next round can use them, such as SCAFFOLD's control variate.

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
        """Whether the inner apply is: extras are added up by element."""
        return says(self.apply, "elementwise")

    @property
    def keeps(self) -> tuple[str, ...]:
        """The extras in its slots, and those that the inner apply keeps."""
        return (*self.apply.keeps, *self.slots)

    def bound(self, objective: Any, partitions: Any) -> Self:
        """A copy that knows the number of partitions, and whose inner apply is bound, too."""
        inner = self.apply.bound(objective, partitions)
        return replace(self, apply=inner, partitions=partitions.split.partitions if self.of_all else None)

    def init(self, params: Vectors) -> Slots:
        """The memory of the inner apply, and zeros (elements,) per dtype for each of the extras."""
        zeros = {slot: {k: torch.zeros_like(p) for k, p in params.items()} for slot in self.slots}
        inner = self.apply.init(params)
        if both := inner.keys() & zeros.keys():
            raise UsageError(f"both the apply and its extras have a slot {min(both)}; give one another name")
        return {**inner, **zeros}

    @torch.no_grad()
    def __call__(self, state: State, update: Update) -> State:
        """Apply the inner apply, then add the extras; vectors are (elements,) per dtype."""
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
    """The mean of the networks, minus what partitions have drifted so far (FedDyn, Acar et al. 2021, Algorithm 1).

    The drift is the paper's h / alpha: it grows by the mean direction, in the proportion |S| / N of the partitions
    whose updates were accepted. The state takes over the update's buffers.
    """

    partitions: int | None = None
    elementwise = True

    def bound(self, objective: Any, partitions: Any) -> Drift:
        """A copy that knows the number of partitions."""
        return replace(self, partitions=partitions.split.partitions)

    def init(self, params: Vectors) -> Slots:
        """No drift yet, zeros (elements,) per dtype."""
        return {"drift": {name: torch.zeros_like(vector) for name, vector in params.items()}}

    @torch.no_grad()
    def __call__(self, state: State, update: Update) -> State:
        """Take a step; vectors are (elements,) per dtype, and computed in the accumulator type."""
        share, params, drift = update.count / (self.partitions or update.count), {}, {}
        for name, param in state.params.items():
            step = update.direction[name].to(wide := accumulator(name))
            grown = state.memory["drift"][name].to(wide) + share * step
            params[name] = (param.to(wide) - step - grown).to(param.dtype)
            drift[name] = grown.to(param.dtype)
        buffers = update.buffers or state.buffers
        return replace(state, params=params, buffers=buffers, memory={"drift": drift}, round=state.round + 1)


def kept_memory(apply: Apply, state: State) -> Slots:
    """An apply's memory in a given state: the state's vectors of the same names, else new ones.

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
