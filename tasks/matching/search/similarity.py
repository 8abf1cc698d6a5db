"""How alike the units of two networks are, from all terms that show them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import torch

from tasks.matching.search.terms import HERE, Metric, MomentTerm, Term, WeightTerm


@dataclass(frozen=True)
class Compared:
    """A term whose one label is the group that is compared; its products are kept."""

    term: Term

    @property
    def size(self) -> int:
        """How many numbers it keeps once its products are known."""
        term = self.term
        if isinstance(term, WeightTerm):
            return 2 * term.target.numel() + term.target.shape[term.labels.index(HERE)] ** 2
        return term.moments.numel() if isinstance(term, MomentTerm) else 0

    @cached_property
    def scores(self) -> torch.Tensor:
        """Similarities (target units, source units)."""
        return self.term.scores()

    @cached_property
    def norms(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Squared norms (units,) of the target's and of the source's units."""
        return self.term.norms()


def similarity(parts: Sequence[Compared], metric: Metric) -> torch.Tensor:
    """Similarities (target units, source units) of one group, from all of its terms.

    Of weights and of activations both, it is the mean of the two similarities.
    """
    kinds = [[p for p in parts if isinstance(p.term, kind)] for kind in (WeightTerm, MomentTerm)]
    by_kind = [_similarity(same, metric) for same in kinds if same]
    return by_kind[0] if len(by_kind) == 1 else torch.stack(by_kind).mean(0)


def _similarity(parts: Sequence[Compared], metric: Metric) -> torch.Tensor:
    total = parts[0].scores if len(parts) == 1 else torch.stack([part.scores for part in parts]).sum(0)
    if metric == "l2":
        return total
    target, source = (
        torch.stack(each).sum(0).sqrt().clamp_min(1e-30) for each in zip(*(p.norms for p in parts), strict=True)
    )
    return total / target[:, None] / source[None, :]


def overall(terms: Sequence[Term], metric: Metric) -> float:
    """How alike two networks are as they stand."""
    kinds = [[t for t in terms if isinstance(t, kind)] for kind in (WeightTerm, MomentTerm)]
    by_kind = [_overall(same, metric) for same in kinds if same]
    return sum(by_kind) / len(by_kind)


def _overall(terms: Sequence[Term], metric: Metric) -> float:
    product, target, source = (sum(each) for each in zip(*(term.value() for term in terms), strict=True))
    return float(product if metric == "l2" else product / max((target * source) ** 0.5, 1e-30))
