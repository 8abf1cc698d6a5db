"""The memory of applies: extras of a round stored in it, and what an apply takes over from another."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, Self

import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots, Vectors
from roundweave.tasks.algorithms.algebra import Apply, says
from roundweave.tasks.numerics.dtypes import accumulator


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
