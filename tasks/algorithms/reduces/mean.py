"""Means of updates, also with weights from the updates' metrics.

They are folds over pairs, so the memory does not grow with the number of partitions.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Annotated, Any

import torch
from pydantic import Field

from roundweave.storage.errors import RoundFailed, UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Record, Slots, Vectors
from roundweave.tasks.algorithms.algebra import Node, Reduce
from roundweave.tasks.numerics.pieces import accumulator, in_pieces, is_float


@dataclass(frozen=True)
class WeightedSum(Record):
    """Sums of weight times vector in the accumulator type; maxima for integer and bool vectors."""

    direction: Vectors
    buffers: Vectors
    weight: int
    extras: Slots = field(default_factory=dict)


@dataclass(frozen=True)
class Mean(Reduce):
    """The mean of the updates weighted by their integer weights (FedAvg, McMahan et al. 2017, Algorithm 1).

    A single update passes unchanged. Float buffers take the weighted mean, integer and bool ones the maximum. If
    `weighted` is False, each update has weight 1.

    >>> left, right = (Update({"float32": torch.tensor([n])}, weight=w) for n, w in ((1.0, 3), (5.0, 1)))
    >>> mean = Mean().finish(State({}), Mean().join(left, right))
    >>> mean.direction["float32"].tolist(), mean.weight
    ([2.0], 4)
    """

    weighted: bool = field(default=True, kw_only=True)
    elementwise = True

    @torch.no_grad()
    def join(self, left: Node, right: Node) -> WeightedSum:
        """Add two nodes. An update that is no sum yet is first multiplied by its weight."""
        (left, weight, times), (right, other, others) = self._weighed(left), self._weighed(right)
        add = partial(_sum, times, others)
        return WeightedSum(
            direction=add(left.direction, right.direction),
            buffers=add(left.buffers, right.buffers),
            weight=weight + other,
            extras={name: add(vectors, right.extras[name]) for name, vectors in left.extras.items()},
        )

    def _weighed(self, node: Node) -> tuple[Node, int, int]:
        """Return a node, its weight, and the factor of its vectors."""
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

    Clipping bounds the influence of one partition (McMahan et al. 2018, section 3, here without noise). Each of
    the extras is scaled in the same way, because extras move the networks of later rounds. Buffers are not scaled.

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
        """Divide the sums. A single update is clipped, too."""
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
    """Return the mean in which each update has weight 1."""
    return Mean(weighted=False)


def _sum(times: int, others: int, left: Vectors, right: Vectors) -> Vectors:
    """Add two nodes' vectors, (element,), each times its number; take the maximum of integer and bool vectors."""

    def add(wide: torch.dtype, one: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
        return (one.to(wide) * times).add_(other.to(wide) * others)

    return {
        k: in_pieces(partial(add, accumulator(k)), v, right[k]) if is_float(k) else torch.maximum(v, right[k])
        for k, v in left.items()
    }


def scaled(vectors: Vectors, times: float) -> Vectors:
    """Multiply vectors (element,) by a number, in the accumulator types. Integer and bool vectors stay."""
    return {k: v.to(accumulator(k)) * times if is_float(k) else v for k, v in vectors.items()}


def divided(vectors: Vectors, weight: float) -> Vectors:
    """Divide sums (element,) by a weight, in the types of the parameters. Integer and bool vectors stay."""
    return {
        k: in_pieces(lambda sums: (sums / weight).to(getattr(torch, k)), v) if is_float(k) else v  # noqa: B023
        for k, v in vectors.items()
    }


Fairness = Annotated[float, Field(ge=0, description="exponent of the loss in a partition's weight; 0: none")]


@dataclass(frozen=True)
class ReweightedSum(Record):
    """Sums over updates of their terms and of the divisor's terms, both in units of exp(`scale`)."""

    sum: WeightedSum
    divisor: float
    scale: float = 0.0


@dataclass(frozen=True)
class Reweighted(Mean):
    """Base class of means whose direction is the sum of a_k d_k over the sum of b_k.

    The rest is the weighted mean.

    A subclass computes a_k and b_k of an update, in a unit of its own, because they may be too large for a float.
    """

    def share(self, update: Update) -> tuple[float, float, float]:
        """Return the factor of an update's direction, its term of the divisor, and the logarithm of their unit."""
        raise NotImplementedError

    @torch.no_grad()
    def join(self, left: Node, right: Node) -> Any:
        """Add two nodes, in the larger one's scale."""
        left, right = self._shared(left), self._shared(right)
        scale = max(left.scale, right.scale)
        left, right = self._rescaled(left, scale), self._rescaled(right, scale)
        return ReweightedSum(super().join(left.sum, right.sum), left.divisor + right.divisor, scale)

    @torch.no_grad()
    def finish(self, state: State, node: Node) -> Update:
        """Divide the sums."""
        shared = self._shared(node)
        mean = super().finish(state, replace(shared.sum, direction={}))
        return replace(mean, direction=divided(shared.sum.direction, self.divisor(shared)))

    def divisor(self, shared: ReweightedSum) -> float:
        """Return the divisor of the sum of the directions."""
        return shared.divisor

    def _shared(self, node: Node) -> ReweightedSum:
        if isinstance(node, ReweightedSum):
            return node
        try:
            factor, divisor, scale = self.share(node)
        except KeyError as error:
            raise RoundFailed(f"reduce {type(self).__name__} needs the metric {error} of its own map") from None
        _, weight, times = self._weighed(node)
        extras = {name: scaled(vectors, times) for name, vectors in node.extras.items()}
        terms, buffers = scaled(node.direction, factor), scaled(node.buffers, times)
        return ReweightedSum(WeightedSum(terms, buffers, weight, extras), divisor, scale)

    def _rescaled(self, shared: ReweightedSum, scale: float) -> ReweightedSum:
        if shared.scale == scale:
            return shared
        times = math.exp(shared.scale - scale)
        direction = scaled(shared.sum.direction, times)
        return ReweightedSum(replace(shared.sum, direction=direction), shared.divisor * times, scale)


@dataclass(frozen=True)
class Normalised(Reweighted):
    """The mean direction of a step, times the mean number of steps (FedNova, Wang et al. 2020, section 4).

    Both means are weighted by examples, unless `weighted` is False. Partitions that take more steps then count no
    more than others.
    """

    elementwise = True

    def share(self, update: Update) -> tuple[float, float, float]:
        """Return the weight over the steps, and the weight times the steps."""
        steps, (_, weight, _) = update.metrics["walked"], self._weighed(update)
        return weight / steps, weight * steps, 0.0

    def divisor(self, shared: ReweightedSum) -> float:
        return shared.sum.weight**2 / shared.divisor


@dataclass(frozen=True)
class Fair(Reweighted):
    """Updates weighted by their loss F to the power q (q-FedAvg, Li et al. 2020, Algorithm 2).

    With L = 1 / lr and the direction d, the result is the sum of F^q L d divided by the sum of ``q F^(q - 1) |L
    d|^2 + L F^q``. With q = 0 it is the plain mean.
    """

    q: Fairness = 1.0

    def share(self, update: Update) -> tuple[float, float, float]:
        """Return L, the term of the divisor, and the logarithm of their unit F^q."""
        loss, lipschitz = update.metrics["start_loss"], 1 / update.metrics["rate"]
        if not 0 <= loss < math.inf:
            raise UsageError(f"q-FedAvg takes powers of losses, and the loss {loss} has none; give another loss")
        if not self.q:
            return lipschitz, lipschitz, 0.0
        if not loss:
            return 0.0, 0.0, -math.inf
        squares = sum(v.double().square().sum().item() for k, v in update.direction.items() if is_float(k))
        return lipschitz, self.q / loss * squares * lipschitz**2 + lipschitz, self.q * math.log(loss)

    def divisor(self, shared: ReweightedSum) -> float:
        return shared.divisor or 1.0  # all losses are 0: nothing to improve


@dataclass(frozen=True)
class Worst(Reweighted):
    """The mean in which updates have the weights that the map `Agnostic` computes (Mohri et al. 2019)."""

    elementwise = True

    def share(self, update: Update) -> tuple[float, float, float]:
        """Return 1, 1, and the logarithm of the update's weight."""
        return 1.0, 1.0, update.metrics["log_weight"]
