"""Matches units within a network as well as across two, for networks that learned different tasks.

Two units that do the same, wherever they are, become one (ZipIt, Stoica et al. 2024, section 4.1).
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from roundweave.storage.errors import UsageError
from roundweave.tasks.matching.search.activations import moment_terms
from roundweave.tasks.matching.search.matches import Evidence, match_all
from roundweave.tasks.matching.search.terms import Term

PAIRS = [(0, 0), (0, 1), (1, 1)]
"""The pairs of networks whose `activation_moments` are needed."""


def match_within(evidence: Evidence) -> list[dict[str, torch.Tensor]]:
    """For each of two networks and each group a matrix (units, source units), of ones where units become one.

    Of the units of both networks the most similar two, of one or of both, are paired first. A pair's mean is the
    unit of the merged network, so the mean of `units.permute` of both networks is the merged one; it does NOT
    preserve functions. Groups with parents, the parents themselves, and those that no activation shows alone are
    matched one to one. Raises `UsageError` for other numbers of networks, or without moments.
    """
    units = evidence.units
    if len(evidence.states) != 2:
        raise UsageError(f"within needs two networks, not {len(evidence.states)}")
    orders = match_all(evidence)
    terms = {pair: moment_terms(evidence.moments, pair, evidence.measure) for pair in PAIRS}
    for name in filter(units.mixes, units.groups):
        shown = [[term for term in each if term.labels == (name,)] for each in terms.values()]
        if all(shown):
            for order, matrix in zip(orders, _zipped(*map(_similarity, shown)), strict=True):
                order[name] = matrix
    return orders


def _similarity(terms: Sequence[Term]) -> torch.Tensor:
    """Return the mean similarity (units, units) over the places where activations show them."""
    return torch.stack([term.compared("cosine")[0] for term in terms]).mean(0)


def _zipped(first: torch.Tensor, across: torch.Tensor, second: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the matrices (pairs, units) of both networks, which have a one for each unit that is in a pair."""
    size = len(across)
    every = torch.cat([torch.cat([first, across], 1), torch.cat([across.T, second], 1)])
    upper = torch.triu_indices(2 * size, 2 * size, 1)
    order = every[upper[0], upper[1]].argsort(descending=True, stable=True)
    matrix, free, pair = torch.zeros(size, 2 * size), [True] * (2 * size), 0
    for one, other in upper[:, order].T.tolist():
        if free[one] and free[other]:
            free[one] = free[other] = False
            matrix[pair, [one, other]] = 1.0
            pair += 1
    return matrix[:, :size], matrix[:, size:]
