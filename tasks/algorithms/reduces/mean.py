"""Reduces that are means. They are computed pairwise, so memory does not grow with the number of partitions."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial

import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Record, Slots, Vectors
from roundweave.tasks.algorithms.algebra import Node, Reduce
from roundweave.tasks.numerics.dtypes import accumulator, is_float
from roundweave.tasks.numerics.pieces import in_pieces


@dataclass(frozen=True)
class WeightedSum(Record):
    """Sums of weight times vector in the accumulator type; for integer and bool vectors it is the maximum."""

    direction: Vectors
    buffers: Vectors
    weight: int
    extras: Slots = field(default_factory=dict)


@dataclass(frozen=True)
class Mean(Reduce):
    """The mean of the updates weighted by their integer weights (FedAvg, McMahan et al. 2017, Algorithm 1).

    A single update passes unchanged. Float buffers take the weighted mean, integer and bool ones the maximum.
    If `weighted` is false, each update has weight 1.

    >>> left, right = (Update({"float32": torch.tensor([n])}, weight=w) for n, w in ((1.0, 3), (5.0, 1)))
    >>> mean = Mean().finish(State({}), Mean().join(left, right))
    >>> mean.direction["float32"].tolist(), mean.weight
    ([2.0], 4)
    """

    weighted: bool = field(default=True, kw_only=True)
    elementwise = True

    @torch.no_grad()
    def join(self, left: Node, right: Node) -> WeightedSum:
        """Add two nodes; an update that is no sum yet is multiplied by its weight."""
        (left, weight, times), (right, other, others) = self._weighed(left), self._weighed(right)
        add = partial(_sum, times, others)
        return WeightedSum(
            direction=add(left.direction, right.direction),
            buffers=add(left.buffers, right.buffers),
            weight=weight + other,
            extras={name: add(vectors, right.extras[name]) for name, vectors in left.extras.items()},
        )

    def _weighed(self, node: Node) -> tuple[Node, int, int]:
        """A node, what it weighs, and what its vectors are to be multiplied by."""
        if isinstance(node, WeightedSum):
            return node, node.weight, 1
        weight = node.weight if self.weighted else 1
        return node, weight, weight

    def finish(self, state: State, node: Node) -> Update:
        """Divide the sums by the sum of the weights, then cast to the parameters' types."""
        if isinstance(node, Update):
            return node
        return Update(
            direction=divided(node.direction, node.weight),
            buffers=divided(node.buffers, node.weight),
            extras={name: divided(vectors, node.weight) for name, vectors in node.extras.items()},
            weight=node.weight,
        )


@dataclass(frozen=True)
class ClippedMean(Mean):
    """The mean of updates whose directions are scaled to an L2 norm of at most `norm` over all elements.

    It bounds what one partition can move (McMahan et al. 2018, section 3, here without noise). Each of the extras,
    which move the networks of later rounds, is scaled so as well; buffers are not.

    >>> update = Update({"float32": torch.tensor([3.0, 4.0])})
    >>> ClippedMean(norm=1.0).finish(State({}), update).direction["float32"].norm().item()
    1.0
    """

    norm: float = 1.0

    def __post_init__(self) -> None:
        if not self.norm > 0:
            raise UsageError(f"clipped_mean takes a norm above 0, not {self.norm}")

    def _weighed(self, node: Node) -> tuple[Node, int, int]:
        return super()._weighed(self._clipped(node) if isinstance(node, Update) else node)

    def finish(self, state: State, node: Node) -> Update:
        """Divide the sums; a single update is clipped."""
        return self._clipped(node) if isinstance(node, Update) else super().finish(state, node)

    def _clipped(self, update: Update) -> Update:
        extras = {name: self._shortened(vectors) for name, vectors in update.extras.items()}
        return replace(update, direction=self._shortened(update.direction), extras=extras)

    def _shortened(self, vectors: Vectors) -> Vectors:
        floats = [vector.double().square().sum() for k, vector in vectors.items() if is_float(k)]
        times = self.norm / max(self.norm, math.sqrt(sum(map(float, floats))))
        return {
            k: (vector.to(accumulator(k)) * times).to(vector.dtype) if times < 1 and is_float(k) else vector
            for k, vector in vectors.items()
        }


def plain_mean() -> Mean:
    """The mean of the updates with weight 1 each."""
    return Mean(weighted=False)


def _sum(times: int, others: int, left: Vectors, right: Vectors) -> Vectors:
    """The sum of two nodes' vectors, (element,), each times its number; the maximum of what is no float."""

    def add(wide: torch.dtype, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return one.to(wide) * times + other.to(wide) * others

    return {
        k: in_pieces(partial(add, accumulator(k)), v, right[k]) if is_float(k) else torch.maximum(v, right[k])
        for k, v in left.items()
    }


def scaled(vectors: Vectors, times: float) -> Vectors:
    """Vectors (element,) times a number, in the types in which they are summed; what is no float stays."""
    return {k: v.to(accumulator(k)) * times if is_float(k) else v for k, v in vectors.items()}


def divided(vectors: Vectors, weight: float) -> Vectors:
    """Sums (element,) over a weight, in the types of the parameters; what is no float stays."""
    return {
        k: in_pieces(lambda sums: (sums / weight).to(getattr(torch, k)), v) if is_float(k) else v  # noqa: B023
        for k, v in vectors.items()
    }
