"""Assignments: the best of all permutations, and mixtures of the k most similar."""

from __future__ import annotations

import math
from itertools import permutations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave.tasks.matching.search.matches import assign, soft_assignment


@given(st.integers(1, 6), st.integers(0, 2**31))
def test_no_permutation_is_better_than_the_assigned_one(size: int, seed: int) -> None:
    similarity = torch.randn(size, size, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    found = assign(similarity)
    best = max(sum(similarity[i, j].item() for i, j in enumerate(p)) for p in permutations(range(size)))
    assert sorted(found.tolist()) == list(range(size))
    assert similarity[torch.arange(size), found].sum().item() == pytest.approx(best, abs=1e-9)


def test_a_mixture_is_a_softmax_over_the_k_most_similar() -> None:
    similarity = torch.tensor([[0.0, 0.1, 0.2]])
    assert soft_assignment(similarity, 1, 0.1).tolist() == [[0.0, 0.0, 1.0]]
    e = math.e
    two = soft_assignment(similarity, 2, 0.1)[0]
    assert two.tolist() == pytest.approx([0.0, 1 / (1 + e), e / (1 + e)])
    assert torch.allclose(soft_assignment(similarity, None, 0.1), torch.softmax(similarity / 0.1, 1))
    assert torch.equal(soft_assignment(similarity, 7, 0.1), soft_assignment(similarity, None, 0.1))


@given(st.integers(1, 8), st.one_of(st.none(), st.integers(1, 9)), st.floats(0.01, 10), st.integers(0, 999))
def test_mixtures_are_row_stochastic(size: int, k: int | None, temperature: float, seed: int) -> None:
    found = soft_assignment(torch.randn(size, size, generator=torch.Generator().manual_seed(seed)), k, temperature)
    assert (found >= 0).all()
    assert torch.allclose(found.sum(1), torch.ones(size), atol=1e-5)
    assert ((found > 0).sum(1) <= min(k or size, size)).all()
