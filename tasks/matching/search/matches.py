"""Matches the units of two networks, or of several with one another."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Literal

import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.groups import Permutation, Piece, Tensors, UnitGroups
from roundweave.tasks.matching.search.activations import Moments, moment_terms
from roundweave.tasks.matching.search.alignment import Aligner, soft_assignment
from roundweave.tasks.matching.search.terms import Metric, Term, mean_term, weight_terms

By = Literal["weights", "activations", "mixed"]
METRICS: Mapping[str, Metric] = {"weights": "l2", "activations": "correlation", "mixed": "cosine"}
"""The default metrics: squared distance for weights, correlation for activations, cosine for a mix of both."""

ROUNDS = 20
"""The most times that each of several networks is matched to the others; it ends when none of them changes."""


@dataclass(frozen=True)
class Evidence:
    """What networks are compared by: their named tensors, of the same shapes, and moments of their activations.

    Units that no activation shows, such as those inside a recurrent layer, are compared by their weights. Raises
    `UsageError` for values that are not finite, missing activations, or a mixed match by l2.
    """

    states: Sequence[Tensors]
    units: UnitGroups
    by: By = "weights"
    metric: Metric | None = None
    moments: Mapping[Piece, Moments] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for number, state in enumerate(self.states):
            for name, tensor in self.units.checked(state):
                if not tensor.isfinite().all():
                    raise UsageError(f"tensor {name} of network {number} has values that are not finite")
        if self.by != "weights" and not self.moments:
            raise UsageError(f"matching by {self.by} needs the networks' activations on examples")
        if self.by == "mixed" and self.metric == "l2":
            raise UsageError(
                "a mixed match needs cosine or correlation: weights and activations have other scales"
            )

    @property
    def measure(self) -> Metric:
        """The given metric, or the default one for `by`."""
        return self.metric or METRICS[self.by]

    def align(
        self, targets: Mapping[int, Permutation], source: int, start: Permutation | None = None
    ) -> dict[str, torch.Tensor]:
        """The permutation of a network's units that makes it most like the mean of others in their orders.

        Permutations are int64 (*sizes of parents, size) for each group. The search begins from `start` if given.
        """
        return Aligner(self.terms(targets, source, self.measure), self.units.groups, self.measure).align(start)

    def terms(self, targets: Mapping[int, Permutation], source: int, metric: Metric) -> list[Term]:
        """The terms that compare a network with the mean of others, which are permuted first."""
        moments = self.moments if self.by != "weights" else {}
        shown: set[str | None] = {None}
        if self.by == "activations":
            shown |= {name for piece in moments for name in piece.groups}
        pieces = [piece for piece in self.units.pieces if not shown.issuperset(piece.groups)]
        terms: list[Term] = []
        if pieces:
            terms += weight_terms(self._mean(targets), self.states[source], self.units, metric, pieces)
        each = [
            [term.ordered(self.units.groups, order) for term in moment_terms(moments, (target, source), metric)]
            for target, order in targets.items()
        ]
        return [*terms, *map(mean_term, zip(*each, strict=True))]

    def _mean(self, targets: Mapping[int, Permutation]) -> Tensors:
        """The mean of permuted networks; a single one in its own order is returned itself and not read."""
        if len(targets) == 1:
            ((number, order),) = targets.items()
            home = self.units.identity()
            if all(torch.equal(table, home[name]) for name, table in order.items()):
                return self.states[number]
        aligned = [self.units.permute(self.states[i], order) for i, order in targets.items()]
        return average(aligned, [1.0] * len(aligned))


def match(
    target: Tensors,
    source: Tensors,
    units: UnitGroups,
    by: By = "weights",
    *,
    metric: Metric | None = None,
    moments: Mapping[Piece, Moments] | None = None,
    start: Permutation | None = None,
) -> dict[str, torch.Tensor]:
    """Find the permutation of the source's units that makes it most like the target.

    Apply it with ``units.permute(source, order)``. Both networks are named tensors of the same shapes; the
    permutation is int64 (*sizes of parents, size) for each group. Matching by activations, or by a mix of both,
    needs the `activation_moments` of the pair (0, 1). `start` is an earlier permutation from which to search on.
    """
    return Evidence((target, source), units, by, metric, moments or {}).align({0: units.identity()}, 1, start)


def match_each(evidence: Evidence, k: int | None, temperature: float) -> list[dict[str, torch.Tensor]]:
    """Match each network softly to the first, which keeps its order.

    For each group it is a row-stochastic matrix (units, source units) over the k most similar units; k None means
    all. The weights are a softmax of similarity / temperature. Each layer's mixture is applied to the next layer's
    input before that layer is compared. Unlike a permutation, a mixture does NOT preserve the network's function.
    Groups with parents, and the parents themselves (such as attention heads), are matched one to one.
    """
    metric = "cosine" if evidence.metric is None and evidence.measure == "l2" else evidence.measure
    if metric == "l2":
        raise UsageError("a soft match needs cosine or correlation: a temperature has no meaning for l2")
    units, mixture = evidence.units, partial(soft_assignment, k=k, temperature=temperature)
    home = units.identity()
    first = {n: torch.eye(len(t)) if units.mixes(n) else t for n, t in home.items()}
    others = range(1, len(evidence.states))
    return [
        first,
        *(Aligner(evidence.terms({0: home}, i, metric), units.groups, metric, mixture).greedy() for i in others),
    ]


def match_all(evidence: Evidence, together: Literal["first", "many"] = "many") -> list[dict[str, torch.Tensor]]:
    """A permutation for each network, int64 (*sizes of parents, size) for each group; the first keeps its order.

    ``first`` matches each network to the first one. ``many`` goes on from there and matches each network to the
    mean of the others until nothing changes (Git Re-Basin's MergeMany, Ainsworth et al. 2023, Algorithm 3).
    Permutations between any two networks go through one common order, so they are consistent with one another.
    """
    count, home = len(evidence.states), evidence.units.identity()
    orders = [home, *(evidence.align({0: home}, i) for i in range(1, count))]
    if together == "first" or count == 2:
        return orders
    for _ in range(ROUNDS):
        before = list(orders)
        for i in range(count):
            orders[i] = evidence.align({j: order for j, order in enumerate(orders) if j != i}, i, orders[i])
        if all(torch.equal(new[n], old[n]) for new, old in zip(orders, before, strict=True) for n in new):
            break
    back = evidence.units.invert(orders[0])
    return [evidence.units.compose(order, back) for order in orders]
