"""Means with weights that updates tell in their metrics: normalised by steps, or fair to partitions that lose."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Annotated, Any

import torch
from pydantic import Field

from roundweave.storage.errors import RoundFailed, UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Record
from roundweave.tasks.algorithms.algebra import Node
from roundweave.tasks.algorithms.reduces.mean import Mean, WeightedSum, divided, scaled
from roundweave.tasks.numerics.dtypes import is_float

Fairness = Annotated[float, Field(ge=0, description="how much more partitions with a large loss count; 0: as all")]


@dataclass(frozen=True)
class ReweightedSum(Record):
    """Sums over updates, of their terms and of what the direction is divided by, both in units of exp(`scale`)."""

    sum: WeightedSum
    divisor: float
    scale: float = 0.0


@dataclass(frozen=True)
class Reweighted(Mean):
    """The base class: the direction is the sum of a_k d_k over the sum of b_k; all else is the weighted mean.

    A subclass says what they are of an update; being too large for a float, perhaps, in a unit of their own.
    """

    def share(self, update: Update) -> tuple[float, float, float]:
        """The factor of an update's direction, what it adds to the divisor, and the logarithm of their unit."""
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
        """What the sum of the directions is divided by."""
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

    Both means are weighted by examples, unless `weighted` is false. Partitions that take more steps then count no
    more.
    """

    elementwise = True

    def share(self, update: Update) -> tuple[float, float, float]:
        """Weight over steps, and weight times steps."""
        steps, (_, weight, _) = update.metrics["walked"], self._weighed(update)
        return weight / steps, weight * steps, 0.0

    def divisor(self, shared: ReweightedSum) -> float:
        return shared.sum.weight**2 / shared.divisor


@dataclass(frozen=True)
class Fair(Reweighted):
    """Updates weighted by their loss F to the power q (q-FedAvg, Li et al. 2020, Algorithm 2).

    With L = 1 / lr and d the direction, it is the sum of F^q L d over that of q F^(q - 1) |L d|^2 + L F^q. With
    q = 0 it is the plain mean.
    """

    q: Fairness = 1.0

    def share(self, update: Update) -> tuple[float, float, float]:
        """L, and what it adds to the divisor, both in units of F^q."""
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
        return shared.divisor or 1.0  # all losses are 0: nothing is to be gained


@dataclass(frozen=True)
class Worst(Reweighted):
    """The mean in which updates have the weights that the map `Agnostic` tells (Mohri et al. 2019)."""

    elementwise = True

    def share(self, update: Update) -> tuple[float, float, float]:
        """One to the logarithm of its weight."""
        return 1.0, 1.0, update.metrics["log_weight"]
