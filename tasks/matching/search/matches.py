"""Matches the units of two networks, or of several with one another.

A greedy pass from the input upwards gives a first permutation. Coordinate descent then improves one group at a
time while the others stay (Git Re-Basin, Ainsworth et al. 2023, Algorithm 1), and visits a group again only if a
neighbour has changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Literal

import numpy as np
import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.averaging import average
from roundweave.tasks.matching.groups import Permutation, Piece, Tensors, UnitGroup, UnitGroups
from roundweave.tasks.matching.search.activations import Moments, moment_terms
from roundweave.tasks.matching.search.terms import (
    HERE,
    Metric,
    Term,
    mean_term,
    overall,
    similarity,
    united,
    weight_terms,
)

SWEEPS = 50
"""The most visits of each group; the descent usually ends long before, when nothing changes."""

GAIN = 1e-4
"""A new permutation must increase the similarity by at least this share of it."""

Assign = Callable[[torch.Tensor], torch.Tensor]


def assign(similarity: torch.Tensor) -> torch.Tensor:
    """Return the permutation p, int64 (units,), with the largest total similarity; unit i gets source unit p[i].

    The assignment problem of Kuhn 1955, solved by scipy's shortest augmenting paths (Crouse 2016).
    """
    from scipy.optimize import linear_sum_assignment  # the import takes a quarter of a second

    cost = (-similarity).double().numpy()
    # Subtracting the minimum of each row and column keeps the optimum and shortens the search.
    cost -= cost.min(1, keepdims=True)
    cost -= cost.min(0, keepdims=True)
    return torch.from_numpy(linear_sum_assignment(cost)[1].astype(np.int64))


def soft_assignment(similarity: torch.Tensor, k: int | None, temperature: float) -> torch.Tensor:
    """A row-stochastic matrix (units, source units): softmax of similarity / temperature over the k most similar.

    k None means all of them. k = 1 gives each unit its most similar source unit, so that a source unit may be used
    several times or not at all.
    """
    largest, where = similarity.topk(similarity.shape[1] if k is None else min(k, similarity.shape[1]), dim=1)
    return torch.zeros_like(similarity).scatter_(1, where, torch.softmax(largest / temperature, dim=1))


@dataclass(frozen=True)
class Aligner:
    """Aligns unit groups by terms of similarity; `assign` turns similarities into a permutation or a mixture.

    A group that is a parent of others is compared by pairs: for each pair of a target and a source unit, the
    dependent groups are aligned first. Units without any term keep their order.
    """

    terms: Sequence[Term]
    groups: Mapping[str, UnitGroup]
    metric: Metric = "l2"
    assign: Assign = assign

    def align(self, start: Permutation | None = None) -> dict[str, torch.Tensor]:
        """Return the best permutation found, int64 (*sizes of parents, size) for each group.

        New unit i is the source's unit ``p[..., i]``. With `start` there is no greedy pass.
        """
        known = dict(start) if start is not None else self.greedy()
        waiting = dict.fromkeys(r for r in self._roots() if start is not None or not self._alone(r))
        for _ in range(SWEEPS * len(waiting)):
            if not waiting:
                break
            root = next(iter(waiting))
            del waiting[root]
            if self._improve(root, known):
                waiting |= dict.fromkeys(self._neighbours(root))
        return known

    def greedy(self) -> dict[str, torch.Tensor]:
        """A first permutation: groups are assigned one after the other, preferably next to groups that have one.

        For each group it is int64 (*sizes of parents, size), or the mixture (units, source units) of `assign`.
        """
        known: dict[str, torch.Tensor] = {}
        left = self._roots()
        while left:
            root = next((name for name in left if self._reached(name, known)), left[0])
            left.remove(root)
            known |= self._best(root, known)[0]
        return known

    def _roots(self) -> list[str]:
        return [name for name, group in self.groups.items() if not group.parents]

    def _tree(self, root: str) -> set[str]:
        return {root, *(name for name, group in self.groups.items() if root in group.parents)}

    def _neighbours(self, root: str) -> list[str]:
        tree = self._tree(root)
        near = {label for term in self.terms if tree & set(term.labels) for label in term.labels}
        return [other for other in self._roots() if near & self._tree(other)]

    def _alone(self, root: str) -> bool:
        """Tell whether the group's order depends on no other group, so that one visit is enough."""
        return self._neighbours(root) == [root] and all(t.labels.count(root) < 2 for t in self.terms)

    def _reached(self, root: str, known: Permutation) -> bool:
        """Tell whether some tensor has the group's units and otherwise only units whose order is known."""
        tree = self._tree(root)
        return any(
            len(term.labels) > 1
            and term.labels.count(root) == 1
            and all(label is None or label in known or label in tree for label in term.labels)
            for term in self.terms
        )

    def _improve(self, root: str, known: dict[str, torch.Tensor]) -> bool:
        """Give a group and its dependent groups a better permutation; returns whether there was one."""
        candidate, scores = self._best(root, known)
        both = known, known | candidate
        if scores is not None:
            before, after = (scores.gather(1, order[root][:, None]).sum().item() for order in both)
        else:
            terms = [term for term in self.terms if self._tree(root) & set(term.labels)]
            before, after = (overall([t.settled(self.groups, o) for t in terms], self.metric) for o in both)
        if after <= before + GAIN * abs(before):
            return False
        known |= candidate
        return True

    def _best(self, root: str, known: Permutation) -> tuple[dict[str, torch.Tensor], torch.Tensor | None]:
        """The best permutation of a group and its dependents, and its similarities if it has no dependents."""
        if self._tree(root) != {root}:
            return self._by_pairs(root, known), None
        parts = self._parts(root, known)
        scores = similarity(parts, self.metric) if parts else torch.eye(self.groups[root].size)
        return {root: self.assign(scores)}, scores

    def _parts(self, root: str, known: Permutation) -> Sequence[Term]:
        """The terms of a group's units in each of its tensors, with other groups permuted as far as known."""
        marked = [
            replace(term, labels=(*term.labels[:d], HERE, *term.labels[d + 1 :]))
            for term in self.terms
            for d, name in enumerate(term.labels)
            if name == root
        ]
        return closed([term.settled(self.groups, known) for term in marked], {HERE})

    def _by_pairs(self, root: str, known: Permutation) -> dict[str, torch.Tensor]:
        """The permutation of a group and its dependent groups, from the best alignment of each pair of units."""
        tree = self._tree(root)
        outside = {name: table for name, table in known.items() if name not in tree}
        settled = [term.settled(self.groups, outside) for term in self.terms if tree & set(term.labels)]
        terms = united(closed(settled, tree))
        dependent = [self.groups[name] for name in self.groups if name in tree - {root}]
        inner = {group.name: replace(group, parents=group.parents[1:]) for group in dependent}
        size = self.groups[root].size
        scores, orders = torch.zeros(size, size), {}
        for i in range(size):
            for j in range(size):
                pair = Aligner([term.at(root, i, j) for term in terms], inner, self.metric)
                orders[i, j] = pair.align()
                scores[i, j] = overall([t.settled(inner, orders[i, j]) for t in pair.terms], self.metric)
        order = assign(scores)
        chosen = [orders[i, j] for i, j in enumerate(order.tolist())]
        return {root: order} | {name: torch.stack([one[name] for one in chosen]) for name in inner}


def closed(terms: Sequence[Term], keep: Collection[str]) -> Sequence[Term]:
    """Return the terms with no labels but those to keep: the order of all other units is known."""
    return [term for term in terms if all(label is None or label in keep for label in term.labels)]


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
                numbers = tensor.float() if tensor.itemsize == 1 else tensor  # floats of 8 bits have no isfinite
                if not numbers.isfinite().all():
                    raise UsageError(f"tensor {name} of network {number} has values that are not finite")
        if self.by != "weights" and not self.moments:
            raise UsageError(f"matching by {self.by} needs the networks' activations on examples")
        if self.by == "mixed" and self.metric == "l2":
            raise UsageError("a mixed match needs cosine or correlation: weights and activations differ in scale")

    @property
    def measure(self) -> Metric:
        """The given metric, or the default one for `by`."""
        return self.metric or METRICS[self.by]

    def align(
        self, targets: Mapping[int, Permutation], source: int, start: Permutation | None = None
    ) -> dict[str, torch.Tensor]:
        """Return the permutation of a network's units that makes it most like the mean of others in their orders.

        Permutations are int64 (*sizes of parents, size) for each group. The search begins from `start` if given.
        """
        return Aligner(self.terms(targets, source, self.measure), self.units.groups, self.measure).align(start)

    def terms(self, targets: Mapping[int, Permutation], source: int, metric: Metric) -> list[Term]:
        """Return the terms that compare a network with the mean of others, which are permuted first."""
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
        """Return the mean of permuted networks; a single one in its own order is returned itself and not read."""
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
    """Return a permutation for each network, int64 (*sizes of parents, size) for each group.

    The first keeps its order.

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
