"""The weighted mean and the interpolation along an arc, by numbers that were computed by hand."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave.storage.errors import UsageError
from roundweave.tasks.merging.averages.base import Versions
from roundweave.tasks.merging.averages.interpolations import LinearMean, Slerp
from roundweave.tasks.merging.averages.task_vectors import TaskArithmetic

floats = st.floats(-100, 100, width=32)
vectors = st.integers(1, 5).flatmap(
    lambda n: st.lists(st.lists(floats, min_size=n, max_size=n), min_size=2, max_size=2)
)


def of(*values: float, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.tensor(values, dtype=dtype)


def same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    return torch.equal(one, other) and torch.equal(one.signbit(), other.signbit())


def test_a_negative_coefficient_goes_beyond_the_other_network() -> None:
    # (3 * 1 - 1 * 5) / (3 - 1) and (3 * 2 - 1 * 2) / 2
    assert LinearMean()(Versions("w", [of(1, 2), of(5, 2)], (3, -1))).tolist() == [-1, 2]
    # with a negative sum: (1 * 1 - 3 * 5) / -2
    assert LinearMean()(Versions("w", [of(1), of(5)], (1, -3))).tolist() == [7]


def test_a_sum_is_not_divided_and_may_have_coefficients_that_sum_to_zero() -> None:
    assert LinearMean(normalize=False)(Versions("w", [of(1, 2), of(5, 2)], (2, -1))).tolist() == [-3, 2]
    assert LinearMean(normalize=False)(Versions("w", [of(1, 2), of(5, 2)], (1, -1))).tolist() == [-4, 0]


@pytest.mark.parametrize("coefficients", [(1, -1), (0, 0), (0.1, 0.2, -0.3), (math.inf, 1), (math.nan, 1)])
def test_a_mean_by_a_sum_of_zero_is_refused(coefficients) -> None:
    for average in (LinearMean(), TaskArithmetic(normalize=True)):
        with pytest.raises(UsageError, match="whose sum is not 0"):
            average.check(coefficients)
    LinearMean(normalize=False).check(coefficients)


@given(vectors)
def test_the_ends_of_the_arc_are_the_networks_to_the_bit(pair) -> None:
    first, second = (of(*each) for each in pair)
    assert same_bits(Slerp(t=0)(Versions("w", [first, second], ())), first)
    assert same_bits(Slerp(t=1)(Versions("w", [first, second], ())), second)


def test_the_middle_of_a_quarter_circle_and_a_third_of_it() -> None:
    a, b = of(2, 0), of(0, 2)
    assert Slerp(t=0.5)(Versions("w", [a, b], ())).tolist() == pytest.approx([math.sqrt(2)] * 2)
    # 30 of 90 degrees
    assert Slerp(t=1 / 3)(Versions("w", [a, b], ())).tolist() == pytest.approx([2 * math.cos(math.pi / 6), 1])
    # 20 of 60 degrees, in float64, as a matrix
    a, b = (
        torch.tensor([[1.0, 0]], dtype=torch.float64),
        torch.tensor([[0.5, math.sqrt(0.75)]], dtype=torch.float64),
    )
    found = Slerp(t=1 / 3)(Versions("w", [a, b], ()))
    assert found.dtype == torch.float64
    assert found[0].tolist() == pytest.approx([math.cos(math.pi / 9), math.sin(math.pi / 9)], rel=1e-12)


def test_vectors_of_other_lengths_keep_their_lengths_along_the_arc() -> None:
    # sin(45 degrees) of each: the arc is that of directions, and lengths are mixed as the coefficients are
    found = Slerp()(Versions("w", [of(1, 0), of(0, 3)], ()))
    assert found.tolist() == pytest.approx([math.sqrt(0.5), 3 * math.sqrt(0.5)])


@pytest.mark.parametrize(
    ("first", "second"),
    [((1, 2), (2, 4)), ((1, 2), (-2, -4)), ((0, 0), (3, 5)), ((3, 5), (0, 0)), ((0, 0), (0, 0))],
)
def test_parallel_and_zero_vectors_are_interpolated_along_the_line(first, second) -> None:
    wanted = [0.75 * a + 0.25 * b for a, b in zip(first, second, strict=True)]
    assert Slerp(t=0.25)(Versions("w", [of(*first), of(*second)], ())).tolist() == pytest.approx(wanted)


def test_a_scalar_is_interpolated_along_the_line() -> None:
    assert Slerp(t=0.25)(Versions("w", [torch.tensor(1.0), torch.tensor(3.0)], ())).item() == 1.5
