"""Terms side by side compare the same units as each alone."""

from __future__ import annotations

import pytest
import torch

from roundweave.tasks.matching.search.terms import WeightTerm, overall, similarity, united


def pair(*shape: int) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.randn(shape, dtype=torch.float64), torch.randn(shape, dtype=torch.float64)


@pytest.mark.parametrize("metric", ["l2", "cosine"])
def test_one_term_has_the_similarity_of_all(metric) -> None:
    torch.manual_seed(0)
    # Two heads of three units, in a matrix, a bias, a matrix that has the units first, and one of complex numbers.
    given = {("head", "unit", None): (2, 3, 5), ("head", "unit"): (2, 3), ("unit", None, "head"): (3, 4, 2)}
    values = [*((pair(*shape), labels) for labels, shape in given.items()), (pair(3, 2, 2), ("unit", "head"))]
    terms = [WeightTerm(lambda both=both: both, labels) for both, labels in values]
    (one,) = united(terms)
    assert one.labels == ("head", "unit", None)
    assert overall([one], metric) == pytest.approx(overall(terms, metric))
    found = similarity([one.at("head", 1, 0)], metric)
    torch.testing.assert_close(found, similarity([term.at("head", 1, 0) for term in terms], metric))
