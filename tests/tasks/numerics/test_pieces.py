"""Large vectors that are computed a piece at a time have the bits of one call, also where many are summed."""

import pytest
import torch

from roundweave.tasks.numerics.pieces import in_pieces


@pytest.mark.parametrize("extra", [-1, 0, 1, 31, 64, 65])
@pytest.mark.parametrize("updates", [9, 33, 129])
def test_a_mean_of_many_has_the_bits_of_one_call(updates: int, extra: int) -> None:
    points = torch.randn(updates, 2 * max((1 << 17) // updates, 1 << 11) + extra)
    assert torch.equal(in_pieces(lambda piece: piece.mean(0), points), points.mean(0))
