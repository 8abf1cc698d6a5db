"""What is recorded of examples: parts add up to the whole, and indices are those that one computes by hand."""

from __future__ import annotations

import math
from functools import reduce
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave import Dataset, Examples
from roundweave.storage.rounds.columns import INFINITE, Column, drifted, stability_index
from roundweave.tasks.data.description import columns_of

NUMBERS = st.one_of(
    st.floats(width=64),
    st.integers(-40, 40).map(float),
    st.sampled_from([0.0, -0.0, math.inf, -math.inf, math.nan, 1e300, -1e300, 5e-324]),
)


def column(values: Any, labels: Any = None, least: int = 1) -> dict[str, Column]:
    inputs = torch.as_tensor(np.array(values, np.float64))[:, None]
    targets = torch.zeros(len(inputs)) if labels is None else torch.tensor(labels)
    return columns_of(Dataset(Examples(inputs, targets)), least)


@given(st.lists(NUMBERS, min_size=1, max_size=60), st.randoms())
def test_parts_in_any_split_and_order_combine_to_the_whole(values: list[float], random: Any) -> None:
    whole, shuffled = column(values)["inputs 0"], random.sample(values, len(values))
    ends = sorted({0, len(values), *(random.randint(0, len(values)) for _ in range(4))})
    parts = [column(shuffled[a:b])["inputs 0"] for a, b in pairwise(ends)]
    joined = reduce(Column.joined, parts)
    assert (joined.bins, joined.missing, joined.examples) == (whole.bins, whole.missing, whole.examples)
    assert joined.finite == whole.finite
    scale = max([1.0, *(abs(value) for value in values if math.isfinite(value))])
    if scale < 1e307:  # else the difference of two means may be infinite
        assert joined.mean == pytest.approx(whole.mean, abs=1e-9 * scale)
        assert joined.deviation == pytest.approx(whole.deviation, abs=1e-7 * scale)


@given(st.lists(st.integers(0, 5), min_size=1, max_size=40))
def test_labels_of_parts_add_up(labels: list[int]) -> None:
    parts = [column([0.0], [label])["targets"] for label in labels]
    assert reduce(Column.joined, parts) == column([0.0] * len(labels), labels)["targets"]


@given(st.lists(NUMBERS, min_size=1, max_size=60))
def test_equal_examples_have_not_moved(values: list[float]) -> None:
    (inputs, targets) = drifted(column(values), column(values))
    assert [inputs.psi, targets.psi] == [0.0, 0.0]
    assert inputs.what == targets.what == "stable"


def test_bins_are_those_of_the_grid() -> None:
    """A bin of 1.0 to 1.0625, one of 31, and those of what is no number."""
    counted = column([1.0, 1.06, 1.0625, 31.0, 31.9, -1.0, 0.0, -0.0, math.inf, math.nan])["inputs 0"]
    one = 1023 << 4
    assert counted.bins == {one: 2, one + 1: 1, (1027 << 4) + 15: 2, -one: 1, 0: 2, INFINITE: 1}
    assert (counted.missing, counted.values, counted.finite) == (1, 10, 8)


def test_of_fewer_than_ten_nothing_is_told() -> None:
    """Neither the one value of 140 that is not 0, nor the mean from which it follows."""
    values = [7.25, *[0.0] * 119, *[2.0] * 11, *[math.nan] * 9]
    inputs, targets = column(values, [0] * 131 + [1] * 9, least=10).values()
    assert inputs.bins == {0: 119, 1024 << 4: 11}
    assert (inputs.examples, inputs.missing, inputs.finite) == (140, 0, 130)
    assert (inputs.mean, inputs.deviation) == pytest.approx((22 / 130, math.sqrt(44 / 130 - (22 / 130) ** 2)))
    assert targets.categories == {"0": 131}


def test_an_index_is_what_one_computes_by_hand() -> None:
    """Shares of 0.5 and 0.5 become 0.8 and 0.2: 0.3 ln 1.6 + (-0.3) ln 0.4."""
    by_hand = 0.3 * math.log(1.6) - 0.3 * math.log(0.4)
    assert stability_index({"a": 0.5, "b": 0.5}, {"a": 0.8, "b": 0.2}, 0.01) == pytest.approx(by_hand)
    labels = [[0] * 500 + [1] * 500, [0] * 800 + [1] * 200]
    before, after = (column([0.0] * 1000, each) for each in labels)
    assert drifted(before, after)[0].psi == pytest.approx(by_hand)
    halves = ([1.0] * 500 + [2.0] * 500, [1.0] * 800 + [2.0] * 200)
    moved = drifted(*map(column, halves))[0]
    assert (moved.column, moved.what, moved.psi) == ("inputs 0", "moved much", pytest.approx(by_hand))
    assert str(moved) == "inputs 0 moved much, psi 0.416: 1.5 ± 0.5 -> 1.2 ± 0.4"


def test_deciles_are_those_of_the_examples_before() -> None:
    """One of ten values is gone and its tenth is below all others: 0.1 ln(0.1 / 0.0005), twice, of 1000."""
    before = column([float(2 + n % 10) for n in range(1000)])
    after = column([1.0 if n % 10 == 9 else float(2 + n % 10) for n in range(1000)])
    psi = drifted(before, after)[0].psi
    assert psi == pytest.approx(2 * (0.1 - 5e-4) * math.log(0.1 / 5e-4))


@pytest.mark.parametrize(("share", "what"), [(0.6, "stable"), (0.7, "moved"), (0.8, "moved much")])
def test_the_usual_bounds(share: float, what: str) -> None:
    """Of shares of a half: 0.6 has an index of 0.041, 0.7 one of 0.169 and 0.8 one of 0.416."""
    before, after = (column([0.0] * int(10_000 * p) + [1.0] * int(10_000 * (1 - p))) for p in (0.5, share))
    assert drifted(before, after)[0].what == what


def test_few_examples_that_differ_by_chance_have_not_moved() -> None:
    drawn = np.random.default_rng(0)
    moved = [drifted(column(drawn.normal(size=60)), column(drawn.normal(size=60)))[0] for _ in range(100)]
    assert sum(each.what != "stable" for each in moved) <= 6
    assert max(each.psi or 0 for each in moved) > 0.25  # which the usual bounds alone would refuse


def test_what_is_new_and_gone_is_named_first() -> None:
    before, after = {"age": column([1.0])["inputs 0"]}, {"height": column([2.0])["inputs 0"]}
    assert list(map(str, drifted(before, after))) == ["height is new (2 ± 0)", "age is gone (1 ± 0)"]
    labels = drifted(column([0.0] * 40, [0] * 20 + [1] * 20), column([0.0] * 40, [0] * 20 + [2] * 20))
    assert [str(each) for each in labels][:2] == ["targets '2' is new (50.0%)", "targets '1' is gone (50.0%)"]


def test_a_class_that_is_absent_by_chance_is_not_gone() -> None:
    """Of 1 in 100, one of 100 examples is expected, and ten of 1000."""
    before = column([0.0] * 1000, [0] * 990 + [1] * 10)
    for examples, whats in ((100, {"stable"}), (1000, {"stable", "gone"})):
        assert {each.what for each in drifted(before, column([0.0] * examples, [0] * examples))} == whats


def test_labels_that_become_quantities_are_gone_and_new() -> None:
    what_became = drifted(column([0.0], [1]), column([0.0]))
    assert [each.what for each in what_became if each.column == "targets"] == ["new", "gone"]


def test_missing_values_count_as_a_share_of_their_own() -> None:
    before, after = column([1.0] * 1000), column([1.0] * 800 + [math.nan] * 200)
    moved = drifted(before, after)[0]
    assert moved.psi == pytest.approx((0.2 - 5e-4) * math.log(0.2 / 5e-4) + 0.2 * math.log(1 / 0.8))
    assert moved.after == "1 ± 0, 20.0% missing"


def test_moments_are_those_of_numpy() -> None:
    values = np.random.default_rng(1).normal(50, 7, 1000)
    counted = column(values)["inputs 0"]
    assert (counted.mean, counted.deviation) == (pytest.approx(values.mean()), pytest.approx(values.std()))
    huge = column([1e300, -1e300])["inputs 0"]
    assert (huge.mean, huge.deviation) == (0.0, 1e300)
