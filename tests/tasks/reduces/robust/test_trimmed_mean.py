"""The trimmed mean by hand."""

from __future__ import annotations

import pytest
import torch

from tasks.reduces.robust.median import Median
from tasks.reduces.robust.trimmed_mean import TrimmedMean

FIVE = torch.tensor([[3.0], [-100.0], [2.0], [50.0], [7.0]])


@pytest.mark.parametrize(("f", "wanted"), [(0, -38 / 5), (1, 12 / 3), (2, 3.0)])
def test_of_five_without_extremes(f: int, wanted: float) -> None:
    assert TrimmedMean(f).center(FIVE).item() == pytest.approx(wanted)


def test_all_but_the_middle_left_out_is_the_median() -> None:
    assert torch.equal(TrimmedMean(2).center(FIVE), Median().center(FIVE))


def test_each_coordinate_is_trimmed_by_itself() -> None:
    points = torch.tensor([[0.0, 9.0], [1.0, -9.0], [5.0, 1.0]])
    assert TrimmedMean(1).center(points).tolist() == [1.0, 1.0]
