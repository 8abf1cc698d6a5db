"""What networks use of torch without being documented is there, and named where it is not."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from roundweave.tasks.numerics.unofficial import first_of_permutation, hooked, spectral_norms

GONE = "torch has it no more, or otherwise: mend tasks/numerics/unofficial.py"


def test_spectral_norms_are_those_of_either_kind() -> None:
    of_old, new = nn.utils.spectral_norm(nn.Linear(3, 2)), nn.utils.parametrizations.spectral_norm(nn.Linear(3, 2))
    vectors = [[len(each) for each in found] for _, found, _ in spectral_norms(nn.Sequential(of_old, new))]
    assert vectors == [[2, 3], [2, 3]], GONE


def test_hooks_of_a_parameter_go_to_another() -> None:
    old, new = nn.Parameter(torch.ones(2)), nn.Parameter(torch.ones(2))
    told: list[object] = []
    old.register_hook(lambda gradient: 2 * gradient)
    old.register_post_accumulate_grad_hook(told.append)
    hooked(new, old).sum().backward()
    assert new.grad is not None
    assert new.grad.tolist() == [2, 2], GONE
    assert told == [new], GONE


@pytest.mark.parametrize("seed", [0, 1, (1 << 32) - 1, 1 << 32, (1 << 40) + 17, (1 << 63) - 1])
def test_the_first_of_a_permutation_are_those_of_a_whole_one(seed: int) -> None:
    # In the small ones many numbers have changed places before they are drawn.
    for count, first in ((1, 1), (2, 1), (10, 9), (10, 10), (300, 299), (30_000, 64), (1_000_003, 501)):
        whole = torch.randperm(count, generator=torch.Generator().manual_seed(seed))
        drawn = first_of_permutation(count, first, seed)
        assert drawn.dtype == whole.dtype
        assert torch.equal(drawn, whole[:first]), GONE
