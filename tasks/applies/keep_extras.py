"""An apply that keeps what updates bring besides the direction."""

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
    """Another apply, and beside its memory the round's reduced extras, zeros before the first round.

    So the maps of the next round know what was reduced in this one, such as SCAFFOLD's control variate.

    >>> from tasks.applies.sgd import Sgd
    >>> KeepExtras(Sgd(), ("control",)).init({"float32": torch.ones(2)})
    {'control': {'float32': tensor([0., 0.])}}
    """

    apply: Apply
    slots: tuple[str, ...]

    def bound(self, objective: Any, partitions: Any) -> KeepExtras:
        """With the apply inside told, too."""
        return replace(self, apply=self.apply.bound(objective, partitions))

    def init(self, params: Vectors) -> Mapping[str, Vectors]:
        """The memory of the apply inside, and a vector (elements,) per dtype for each slot."""
        zeros = {slot: {k: torch.zeros_like(p) for k, p in params.items()} for slot in self.slots}
        return {**self.apply.init(params), **zeros}

    def __call__(self, state: State, update: Update) -> State:
        """Apply, and remember; vectors (elements,) per dtype."""
        after = self.apply(state, update)
        return replace(after, memory={**after.memory, **{slot: update.extras[slot] for slot in self.slots}})
