"""The evidence by which networks are compared: their weights, their activations, or both."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal

import torch

from storage.errors import UsageError
from tasks.matching.averaging import average
from tasks.matching.groups import Permutation, Piece, Tensors, UnitGroups
from tasks.matching.search.activations import Moments, moment_terms
from tasks.matching.search.terms import Metric, MomentTerm, Term, weight_terms

By = Literal["weights", "activations", "mixed"]
METRICS: Mapping[str, Metric] = {"weights": "l2", "activations": "correlation", "mixed": "cosine"}
"""The default metrics: squared distance for weights, correlation for activations, cosine for a mix of both."""


@dataclass(frozen=True)
class Evidence:
    """What networks are compared by: their named tensors, of the same shapes, and moments of their activations.

    Raises `UsageError` for values that are not finite, missing activations, or a mixed match by l2.
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

    def pair(self, target: int, source: int) -> list[Term]:
        """The terms that compare two networks in their own orders."""
        return self.beside({target: self.units.identity()}, source)

    def beside(self, targets: Mapping[int, Permutation], source: int) -> list[Term]:
        """The terms that compare a network with the mean of others, which are permuted first.

        A permutation is int64 (*sizes of parents, size) for each group.
        """
        terms: list[Term] = []
        if self.by != "activations":
            terms += weight_terms(self._mean(targets), self.states[source], self.units, self.measure)
        if self.by != "weights":
            terms += self._moments(targets, source)
        return terms

    def _mean(self, targets: Mapping[int, Permutation]) -> Tensors:
        """The mean of permuted networks; a single one in its own order is returned itself and not read."""
        if len(targets) == 1:
            ((number, order),) = targets.items()
            home = self.units.identity()
            if all(torch.equal(table, home[name]) for name, table in order.items()):
                return self.states[number]
        aligned = [self.units.permute(self.states[i], order) for i, order in targets.items()]
        return average(aligned, [1.0] * len(aligned))

    def _moments(self, targets: Mapping[int, Permutation], source: int) -> list[Term]:
        groups, metric = self.units.groups, self.measure
        each = [
            [term.ordered(groups, order) for term in moment_terms(self.moments, (target, source), metric)]
            for target, order in targets.items()
        ]
        return [
            MomentTerm(torch.stack([term.moments for term in same]).mean(0), same[0].labels)
            for same in zip(*each, strict=True)
        ]
