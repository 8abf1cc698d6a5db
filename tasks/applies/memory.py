"""The memory of applies: extras of a round stored in it, and what an apply takes over from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.algebra import Apply
from tasks.numerics.dtypes import accumulator


@dataclass(frozen=True)
class KeepExtras(Apply):
    """Wraps another apply, and keeps in its memory the mean over all partitions of what their extras add up to.

    Extras are changes: the mean of a round's is added in the proportion of the `partitions` whose updates were
    accepted, |S| / N in Karimireddy et al. 2020, Algorithm 1, line 17. Before round 1 they are zeros. The maps of
    the next round can use them, such as SCAFFOLD's control variate.

    >>> from tasks.applies.optimizers import Sgd
    >>> KeepExtras(Sgd(), ("control",)).init({"float32": torch.ones(2)})
    {'control': {'float32': tensor([0., 0.])}}
    """

    apply: Apply
    slots: tuple[str, ...]
    partitions: int | None = None

    def bound(self, objective: Any, partitions: Any) -> KeepExtras:
        """A copy that knows the number of partitions, and whose inner apply is bound, too."""
        inner = self.apply.bound(objective, partitions)
        return replace(self, apply=inner, partitions=partitions.split.partitions)

    def init(self, params: Vectors) -> Mapping[str, Vectors]:
        """The memory of the inner apply, and zeros (elements,) per dtype for each of the extras."""
        zeros = {slot: {k: torch.zeros_like(p) for k, p in params.items()} for slot in self.slots}
        return {**self.apply.init(params), **zeros}

    @torch.no_grad()
    def __call__(self, state: State, update: Update) -> State:
        """Apply the inner apply, then add the extras; vectors are (elements,) per dtype."""
        after, share = self.apply(state, update), update.count / (self.partitions or update.count)
        kept = {
            slot: {
                k: (vector.to(accumulator(k)) + share * update.extras[slot][k]).to(vector.dtype)
                for k, vector in state.memory[slot].items()
            }
            for slot in self.slots
        }
        return replace(after, memory={**after.memory, **kept})


def kept_memory(apply: Apply, state: State) -> Mapping[str, Vectors]:
    """An apply's memory in a given state: the state's vectors of the same names, else new ones.

    Vectors are (element,) by dtype.

    >>> import torch
    >>> from tasks.applies.optimizers import Sgd
    >>> state = State({"float32": torch.zeros(1)}, memory={"first": {"float32": torch.ones(1)}})
    >>> kept_memory(Sgd(momentum=0.9), state)
    {'velocity': {'float32': tensor([0.])}}
    """
    return {slot: state.memory.get(slot, vectors) for slot, vectors in apply.init(state.params).items()}
