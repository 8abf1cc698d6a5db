"""The median of each coordinate by hand."""

from __future__ import annotations

import torch

from tasks.reduces.robust.median import Median


def test_of_an_odd_number_the_middle_one_and_of_an_even_number_the_mean_of_two() -> None:
    points = torch.tensor([[5.0, -1.0], [1.0, 7.0], [2.0, 0.0], [9.0, 3.0]])
    assert Median().center(points[:3]).tolist() == [2.0, 0.0]
    assert Median().center(points).tolist() == [3.5, 1.5]


def test_it_withstands_fewer_than_half() -> None:
    assert [Median().breakdown(count) for count in (1, 2, 3, 4, 5)] == [0, 0, 1, 1, 2]
