"""The memory that an apply takes over from another."""

from __future__ import annotations

from collections.abc import Mapping

from storage.values.state import State
from storage.values.tensors import Vectors
from tasks.algebra import Apply


def kept_memory(apply: Apply, state: State) -> Mapping[str, Vectors]:
    """An apply's memory in a given state: the state's vectors of the same names, else new ones.

    Vectors are (element,) by dtype.

    >>> import torch
    >>> from tasks.applies.sgd import Sgd
    >>> state = State({"float32": torch.zeros(1)}, memory={"first": {"float32": torch.ones(1)}})
    >>> kept_memory(Sgd(momentum=0.9), state)
    {'velocity': {'float32': tensor([0.])}}
    """
    return {slot: state.memory.get(slot, vectors) for slot, vectors in apply.init(state.params).items()}
