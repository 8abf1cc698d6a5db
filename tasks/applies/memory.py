"""The memory of applies: extras of a round stored in it, and what an apply takes over from another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.algebra import Apply


@dataclass(frozen=True)
class KeepExtras(Apply):
    """Wraps another apply and adds the round's reduced extras to its memory; before round 1 they are zeros.

    The maps of the next round can then use them, such as SCAFFOLD's control variate.

    >>> from tasks.applies.optimizers import Sgd
    >>> KeepExtras(Sgd(), ("control",)).init({"float32": torch.ones(2)})
    {'control': {'float32': tensor([0., 0.])}}
    """

    apply: Apply
    slots: tuple[str, ...]

    def bound(self, objective: Any, partitions: Any) -> KeepExtras:
        """A copy whose inner apply is bound, too."""
        return replace(self, apply=self.apply.bound(objective, partitions))

    def init(self, params: Vectors) -> Mapping[str, Vectors]:
        """The memory of the inner apply, and zeros (elements,) per dtype for each of the extras."""
        zeros = {slot: {k: torch.zeros_like(p) for k, p in params.items()} for slot in self.slots}
        return {**self.apply.init(params), **zeros}

    def __call__(self, state: State, update: Update) -> State:
        """Apply the inner apply, then store the extras; vectors are (elements,) per dtype."""
        after = self.apply(state, update)
        return replace(after, memory={**after.memory, **{slot: update.extras[slot] for slot in self.slots}})


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
