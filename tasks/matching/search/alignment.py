"""Search for the order of a source network's units that makes it most like a target.

A greedy pass from the input up gives the start, then coordinate descent takes one group after the other with all
others held (Git Re-Basin, Ainsworth et al. 2023, Algorithm 1), and again only groups whose neighbours changed.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
import torch

from tasks.matching.groups import Group, Permutation
from tasks.matching.search.terms import HERE, Metric, Term, overall, similarity

SWEEPS = 50
"""Visits of each group after which the descent ends; as a rule it ends by itself long before."""

GAIN = 1e-4
"""A new order must be better by this share of the similarity, or the descent would go on for next to nothing."""

ROOM = 1 << 24
"""Numbers that are kept between visits of a group: more would be compared anew than matter in a small network."""

Assign = Callable[[torch.Tensor], torch.Tensor]


def assign(similarity: torch.Tensor) -> torch.Tensor:
    """The permutation, int64 (units,), with the largest total similarity: unit i is given source unit p[i].

    The assignment problem of Kuhn 1955, solved by scipy's shortest augmenting paths (Crouse 2016).
    """
    from scipy.optimize import linear_sum_assignment  # a quarter of a second that only a merge has to pay

    cost = (-similarity).double().numpy()
    # Costs that start from zero in each row and column leave short paths to search: the same optimum, sooner.
    cost -= cost.min(1, keepdims=True)
    cost -= cost.min(0, keepdims=True)
    return torch.from_numpy(linear_sum_assignment(cost)[1].astype(np.int64))


def spread(similarity: torch.Tensor, k: int | None, temperature: float) -> torch.Tensor:
    """A row-stochastic matrix (units, source units): softmax of similarity / temperature over the k most similar.

    k None is all of them; k = 1 gives each unit the one most similar to it, and some source unit to nobody.
    """
    kept, where = similarity.topk(similarity.shape[1] if k is None else min(k, similarity.shape[1]), dim=1)
    return torch.zeros_like(similarity).scatter_(1, where, torch.softmax(kept / temperature, dim=1))


@dataclass(frozen=True)
class Aligner:
    """Terms over groups of units; `assign` makes an order, or a mixture, of similarities.

    A group on which others depend is compared by pairs, each of its target units with each of its source units,
    for which those others are aligned in turn.
    """

    terms: Sequence[Term]
    groups: Mapping[str, Group]
    metric: Metric = "l2"
    assign: Assign = assign
    kept: dict[tuple[int, int], tuple[list[torch.Tensor], Term]] = field(
        default_factory=dict, repr=False, compare=False
    )

    def align(self, start: Permutation | None = None, sweeps: int = SWEEPS) -> dict[str, torch.Tensor]:
        """The permutation, int64 (*sizes of parents, size) for each group; `start` takes the greedy pass's place.

        New unit i is the source's ``p[..., i]``.
        """
        known = dict(start) if start is not None else self.greedy()
        waiting = dict.fromkeys(r for r in self._roots() if start is not None or not self._alone(r))
        for _ in range(sweeps * len(waiting)):
            if not waiting:
                break
            root = next(iter(waiting))
            del waiting[root]
            if self._improve(root, known):
                waiting |= dict.fromkeys(self._neighbours(root))
        return known

    def greedy(self) -> dict[str, torch.Tensor]:
        """Groups one after the other, as soon as the other side of one of their tensors is in order.

        For each int64 (*sizes of parents, size), or what `assign` gives, such as a mixture (units, source units).
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
        """Whether its order depends on no other, so that there is nothing to come back for."""
        return self._neighbours(root) == [root] and all(t.labels.count(root) < 2 for t in self.terms)

    def _reached(self, root: str, known: Permutation) -> bool:
        """Whether some tensor shows the group's units beside nothing but units in order."""
        tree = self._tree(root)
        return any(
            len(term.labels) > 1
            and term.labels.count(root) == 1
            and all(label is None or label in known or label in tree for label in term.labels)
            for term in self.terms
        )

    def _improve(self, root: str, known: dict[str, torch.Tensor]) -> bool:
        """Give a group, and those that depend on it, a better order if there is one."""
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
        """The order of a group and of those that depend on it, and the similarities of a group that is alone."""
        if self._tree(root) != {root}:
            return self._by_pairs(root, known), None
        scores = similarity(self._parts(root, known), self.metric)
        return {root: self.assign(scores)}, scores

    def _parts(self, root: str, known: Permutation) -> Sequence[Term]:
        """The group's units in each of its tensors, everything else in order as far as it is known."""
        places = [(n, dim) for n, t in enumerate(self.terms) for dim, name in enumerate(t.labels) if name == root]
        return comparable([self._settled(*place, known) for place in places], {HERE})

    def _settled(self, number: int, dim: int, known: Permutation) -> Term:
        """A term with all but one dimension in order, kept until one of the other groups changes."""
        term = self.terms[number]
        others = [known[name] for d, name in enumerate(term.labels) if d != dim and name and name in known]
        before, part = self.kept.get((number, dim), (None, None))
        if part is None or before is None or [*map(id, before)] != [*map(id, others)]:
            self.kept.pop((number, dim), None)
            part = term.marked(dim).settled(self.groups, known)
            if part.size + sum(one.size for _, one in self.kept.values()) <= ROOM:
                self.kept[number, dim] = (others, part)
        return part

    def _by_pairs(self, root: str, known: Permutation) -> dict[str, torch.Tensor]:
        """The order of a group and of those that depend on it, from the best alignment of each pair of units."""
        tree = self._tree(root)
        outside = {name: table for name, table in known.items() if name not in tree}
        settled = [term.settled(self.groups, outside) for term in self.terms if tree & set(term.labels)]
        terms = comparable(settled, tree)
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


def comparable(terms: Sequence[Term], keep: Collection[str]) -> Sequence[Term]:
    """The terms whose only labels are those to keep; where they say little, all, by what no order changes."""
    closed = [term for term in terms if all(label is None or label in keep for label in term.labels)]
    if any(term.informed for term in closed):
        return closed
    return [term.unordered(keep) for term in terms]
