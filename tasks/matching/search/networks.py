"""Matches the units of two networks, or of several with one another."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from functools import partial
from typing import Literal

import torch

from storage.errors import UsageError
from tasks.matching.groups import Permutation, Piece, Tensors, UnitGroups
from tasks.matching.search.activations import Moments
from tasks.matching.search.alignment import Aligner, spread
from tasks.matching.search.evidence import By, Evidence
from tasks.matching.search.terms import Metric

Together = Literal["first", "many"]

ROUNDS = 20
"""The most times that each of several networks is matched to the others; it ends when none of them changes."""


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
    return match_pair(Evidence((target, source), units, by, metric, moments or {}), start=start)


def match_pair(
    evidence: Evidence, target: int = 0, source: int = 1, start: Permutation | None = None
) -> dict[str, torch.Tensor]:
    """Find the permutation of one network's units that makes it most like another; both are given by number.

    It is int64 (*sizes of parents, size) for each group. The search begins from `start` if it is given.
    """
    return _align(evidence, {target: evidence.units.identity()}, source, start)


def _align(
    evidence: Evidence, targets: Mapping[int, Permutation], source: int, start: Permutation | None
) -> dict[str, torch.Tensor]:
    """The permutation of a network's units that makes it most like the mean of other, permuted networks."""
    return Aligner(evidence.beside(targets, source), evidence.units.groups, evidence.measure).align(start)


def soft_match(
    evidence: Evidence, k: int | None = 1, temperature: float = 0.1, target: int = 0, source: int = 1
) -> dict[str, torch.Tensor]:
    """For each group, a row-stochastic matrix (units, source units) over the k most similar units; None means all.

    The weights are a softmax of similarity / temperature. Each layer's mixture is applied to the next layer's
    input before that layer is compared. Unlike a permutation, a mixture does NOT preserve the network's function.
    Groups with parents, and the parents themselves (such as attention heads), are matched one to one.
    """
    metric = "cosine" if evidence.metric is None and evidence.measure == "l2" else evidence.measure
    if metric == "l2":
        raise UsageError("a soft match needs cosine or correlation: a temperature has no meaning for l2")
    mixture = partial(spread, k=k, temperature=temperature)
    terms = replace(evidence, metric=metric).pair(target, source)
    return Aligner(terms, evidence.units.groups, metric, mixture).greedy()


def match_each(evidence: Evidence, k: int | None, temperature: float) -> list[dict[str, torch.Tensor]]:
    """Match each network softly to the first, which keeps its order; gives matrices (units, source units)."""
    soft = [soft_match(evidence, k, temperature, 0, i) for i in range(1, len(evidence.states))]
    home = evidence.units.identity()
    first = {n: torch.eye(len(t)) if evidence.units.mixes(n) else t for n, t in home.items()}
    return [first, *soft]


def match_all(evidence: Evidence, together: Together = "many") -> list[dict[str, torch.Tensor]]:
    """A permutation for each network, int64 (*sizes of parents, size) for each group; the first keeps its order.

    ``first`` matches each network to the first one. ``many`` goes on from there and matches each network to the
    mean of the others until nothing changes (Git Re-Basin's MergeMany, Ainsworth et al. 2023, Algorithm 3).
    Permutations between any two networks go through one common order, so they are consistent with one another.
    """
    count = len(evidence.states)
    orders = [evidence.units.identity(), *(match_pair(evidence, 0, i) for i in range(1, count))]
    if together == "first" or count == 2:
        return orders
    for _ in range(ROUNDS):
        before = list(orders)
        for i in range(count):
            orders[i] = _align(evidence, {j: order for j, order in enumerate(orders) if j != i}, i, orders[i])
        if all(torch.equal(new[n], old[n]) for new, old in zip(orders, before, strict=True) for n in new):
            break
    back = evidence.units.invert(orders[0])
    return [evidence.units.compose(order, back) for order in orders]
