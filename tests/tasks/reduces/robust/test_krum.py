"""Krum by hand."""

from __future__ import annotations

import pytest
import torch

from tasks.reduces.robust.krum import Krum

POINTS = torch.tensor([[1.0], [2.0], [2.5], [4.0], [1e6]])
"""With f = 1 the two nearest count: sums of squares 3.25, 1.25, 2.5, 6.25, and that of the last."""


def test_the_update_with_the_nearest_neighbours_is_taken_as_it_is() -> None:
    assert Krum(1).center(POINTS).item() == 2.0


def test_of_the_best_few_the_mean() -> None:
    assert Krum(1, keep=2).center(POINTS).item() == 2.25
    assert Krum(1, keep=3).center(POINTS).item() == pytest.approx((1.0 + 2.0 + 2.5) / 3)


def test_one_update_is_taken_whole_and_not_coordinate_by_coordinate() -> None:
    points = torch.tensor([[0.0, 1.0], [0.1, 1.1], [0.2, 0.9], [0.1, 0.9], [-1e6, 1e6]])
    found = Krum(1).center(points)
    assert any(torch.equal(found, point) for point in points[:4])


def test_corrupted_updates_that_agree_are_not_taken() -> None:
    """Two that are equal are each other's nearest, but with f = 2 a score counts three: 6 for 1, 2 and 3."""
    points = torch.tensor([[0.0], [1.0], [2.0], [3.0], [4.0], [50.0], [50.0]])
    assert Krum(2).center(points).item() == 1.0


def test_colluders_that_fill_a_score_break_it() -> None:
    """With f = 1 of 5 a score counts two: three that agree have each other."""
    points = torch.tensor([[1.0], [2.0], [1e6], [1e6], [1e6]])
    assert Krum(1).center(points).item() == 1e6


def test_of_equals_the_first_is_taken() -> None:
    points = torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0], [0.0, 1.0]])
    assert Krum(0).center(points).tolist() == [1.0, 0.0]


def test_distances_beyond_the_type_do_not_confuse_it() -> None:
    points = torch.tensor([[1.0], [2.0], [2.5], [4.0], [3e38], [-3e38], [3e38]])
    assert Krum(2).center(points).item() in (1.0, 2.0, 2.5, 4.0)
