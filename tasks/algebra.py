'''One idea: a training algorithm is three values, map, reduce and apply.

Each round maps backprop over the partitions, reduces what comes back, and applies the result. All three
are frozen dataclasses with ``__call__``: they pickle small, compare equal, print themselves and keep
nothing on ``self``. A direction is always something to subtract, so averaging deltas and averaging
networks are the same thing. A complete algorithm that needs no network, descending to the mean of the
partitions' numbers:

>>> import torch
>>> from dataclasses import dataclass, replace
>>> from roundweave import Algorithm, Mean, State, Update, reduce_all
>>> @dataclass(frozen=True)
... class Distance:
...     """The gradient of half the squared distance to the mean example."""
...     def __call__(self, objective, state, examples, carry, seed):
...         gradient = state.params["float64"] - examples.mean(0)
...         return Update({"float64": gradient}, weight=len(examples))
>>> @dataclass(frozen=True)
... class Step:
...     """Subtract lr times the direction."""
...     lr: float
...     def init(self, params):
...         return {}
...     def __call__(self, state, update):
...         params = {k: p - self.lr * update.direction[k] for k, p in state.params.items()}
...         return replace(state, params=params, round=state.round + 1)
>>> algorithm = Algorithm(Distance(), Mean(), Step(lr=1.0))
>>> state = State({"float64": torch.zeros(1, dtype=torch.float64)})
>>> partitions = [torch.tensor([[1.0], [2.0], [3.0]]), torch.tensor([[10.0]])]
>>> updates = [algorithm.map(None, state, examples, {}, 0) for examples in partitions]
>>> state = algorithm.apply(state, reduce_all(algorithm.reduce, state, updates))
>>> state.params["float64"].item(), state.round
(4.0, 1)
'''

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Protocol

from storage.values.state import State, Update
from storage.values.tensors import Vectors

Node = Any
"""A partial result of a reduce over some partitions; a lone `Update` is one, so is None (nobody)."""


class Map(Protocol):
    """Backprop over one partition: a pure function of its inputs."""

    def __call__(
        self, objective: Any, state: State, examples: Any, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        """The partition's update; `seed` is drawn from (run seed, round, partition)."""
        ...


class Reduce(Protocol):
    """Combines the accepted updates, as a fold over the tree of partitions."""

    def merge(self, left: Node, right: Node) -> Node:
        """Join two neighbours; either may be a lone `Update`."""
        ...

    def finish(self, state: State, node: Node) -> Update:
        """The round's update from the root of the tree."""
        ...


class Apply(Protocol):
    """The outer optimizer."""

    def init(self, params: Vectors) -> Mapping[str, Vectors]:
        """Its memory before the first round: slots shaped as the parameters."""
        ...

    def __call__(self, state: State, update: Update) -> State:
        """The state of the next round."""
        ...


@dataclass(frozen=True)
class Algorithm:
    """A training algorithm."""

    map: Map
    reduce: Reduce
    apply: Apply
