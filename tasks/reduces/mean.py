"""Reduces that are means. They are computed pairwise, so memory does not grow with the number of partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch

from storage.values.state import State, Update
from storage.values.tensors import Record, Vectors
from tasks.algebra import Node, Reduce
from tasks.numerics.dtypes import accumulator, is_float


@dataclass(frozen=True)
class WeightedSum(Record):
    """Sums of weight times vector in the accumulator type; for integer and bool vectors it is the maximum."""

    direction: Vectors
    buffers: Vectors
    weight: int
    extras: Mapping[str, Vectors] = field(default_factory=dict)


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

    weighted: bool = True

    @torch.no_grad()
    def join(self, left: Node, right: Node) -> WeightedSum:
        """Add two nodes; an update that is no sum yet is first multiplied by its weight."""
        kept = isinstance(left, WeightedSum)
        left, right = self._lift(left), self._lift(right)
        return WeightedSum(
            direction=_add(left.direction, right.direction, kept),
            buffers=_add(left.buffers, right.buffers, kept),
            weight=left.weight + right.weight,
            extras={name: _add(vectors, right.extras[name], kept) for name, vectors in left.extras.items()},
        )

    def _lift(self, node: Node) -> WeightedSum:
        if isinstance(node, WeightedSum):
            return node
        weight = node.weight if self.weighted else 1

        def scale(vectors: Vectors) -> Vectors:
            return {k: v.to(accumulator(k)) * weight if is_float(k) else v for k, v in vectors.items()}

        extras = {name: scale(vectors) for name, vectors in node.extras.items()}
        return WeightedSum(scale(node.direction), scale(node.buffers), weight, extras)

    def finish(self, state: State, node: Node) -> Update:
        """Divide the sums by the sum of the weights, then cast to the parameters' types."""
        if isinstance(node, Update):
            return node
        return Update(
            direction=_divide(node.direction, node.weight),
            buffers=_divide(node.buffers, node.weight),
            extras={name: _divide(vectors, node.weight) for name, vectors in node.extras.items()},
            weight=node.weight,
        )


def plain_mean() -> Mean:
    """The mean of the updates with weight 1 each."""
    return Mean(weighted=False)


def _add(left: Vectors, right: Vectors, kept: bool) -> Vectors:
    """The sum of two nodes' vectors, (element,). Floats are added in place, unless the left ones are `kept`."""
    return {
        k: torch.add(v, right[k], out=None if kept else v) if is_float(k) else torch.maximum(v, right[k])
        for k, v in left.items()
    }


def _divide(vectors: Vectors, weight: int) -> Vectors:
    return {k: (v / weight).to(getattr(torch, k)) if is_float(k) else v for k, v in vectors.items()}
