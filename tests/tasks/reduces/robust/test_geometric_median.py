"""The geometric median by hand and by its definition."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from tasks.reduces.robust.geometric_median import GeometricMedian


def test_of_a_square_it_is_the_middle_wherever_one_corner_is_moved_outwards() -> None:
    """The diagonals' crossing has the smallest sum, and stays when a corner moves along its diagonal."""
    for far in (2.0, 10.0, 1e6):
        points = torch.tensor([[0.0, 0.0], [2.0, 0.0], [0.0, 2.0], [far, far]])
        assert GeometricMedian().center(points).tolist() == pytest.approx([1.0, 1.0], abs=1e-2)


def test_of_a_triangle_it_is_the_point_that_sees_its_sides_at_120_degrees() -> None:
    """Fermat's point of (-1, 0), (1, 0), (0, 2): (0, 1 / sqrt 3)."""
    points = torch.tensor([[-1.0, 0.0], [1.0, 0.0], [0.0, 2.0]])
    found = GeometricMedian().center(points)
    assert found.tolist() == pytest.approx([0.0, 1 / math.sqrt(3)], abs=1e-3)


def test_a_start_at_one_of_the_updates_is_left_where_it_is_not_the_best() -> None:
    """The median of each coordinate is the first point, which sees the two others at less than 120 degrees."""
    points = torch.tensor([[0.0, 0.0], [-1.0, 2.0], [10.0, -0.1]])
    found = GeometricMedian().center(points)
    assert (points - found).norm(dim=1).sum() < points.norm(dim=1).sum()


def test_more_than_half_at_one_place_are_that_place_to_the_bit() -> None:
    points = torch.tensor([[0.1, 0.7], [0.1, 0.7], [0.1, 0.7], [5.0, -3e38], [1e6, 2.0]])
    assert torch.equal(GeometricMedian().center(points), points[0])


@given(st.integers(3, 8), st.integers(0, 99), st.integers(0, 7))
@settings(deadline=None)
def test_no_point_around_has_a_smaller_sum_of_distances(count: int, seed: int, direction: int) -> None:
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)).double()
    found = GeometricMedian(steps=1000, tolerance=1e-9, smoothing=1e-6).center(points)

    def total(point: torch.Tensor) -> float:
        return (points - point).norm(dim=1).sum().item()

    around = 0.05 * torch.eye(4).double().repeat(2, 1)[direction] * (1 if direction < 4 else -1)
    assert total(found) <= total(found + around) + 1e-6
