"""Robust reduces: what they have in common, whatever is corrupted in an update, and each by hand."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from roundweave import Mean, State, Update, reduce_all
from roundweave.storage.errors import RoundFailed
from roundweave.tasks.algorithms.reduces.robust import Bulyan, GeometricMedian, Krum, Median, Robust, TrimmedMean

STATE = State({}, round=6)
SIX = [Median(), TrimmedMean(0), TrimmedMean(2), Krum(1), Krum(1, keep=3), GeometricMedian()]
COORDINATEWISE = [Median(), TrimmedMean(1), TrimmedMean(3)]
WITHSTANDING = [Krum(1), Krum(2), GeometricMedian()]

numbers = st.floats(-10, 10, width=32)


class Scalar(Robust):
    """Forgets the axis."""

    def center(self, points: torch.Tensor) -> torch.Tensor:
        return points.mean()


def test_a_center_of_another_shape_is_named() -> None:
    says = r"the center of reduce Scalar must go from \(2, 3\) to \(3,\), not \(\)"
    with pytest.raises(RoundFailed, match=says):
        reduced(Scalar(), [[1.0, 2.0, 3.0], [3.0, 2.0, 1.0]])


def updates_of(rows: list[list[float]], weights: list[int] | None = None) -> list[Update]:
    weights = weights or [1] * len(rows)
    return [Update({"float32": torch.tensor(row)}, weight=w) for row, w in zip(rows, weights, strict=True)]


def reduced(reduce: Robust, rows: list[list[float]]) -> torch.Tensor:
    return reduce_all(reduce, STATE, updates_of(rows)).direction["float32"]


def withstood_by(reduce: Robust, updates: int) -> int:
    """How many of so many updates may be corrupted."""
    return getattr(reduce, "f", (updates - 1) // 2)


@st.composite
def corrupted(draw: st.DrawFn, reduce: Robust, elements: int = 3) -> tuple[list[list[float]], list[list[float]]]:
    """Honest updates, and as many corrupted ones as the reduce withstands, among which they are mixed."""
    count = draw(st.integers(max(reduce.needs, 3), 9))
    bad = withstood_by(reduce, count)
    row = st.lists(numbers, min_size=elements, max_size=elements)
    far = st.lists(st.sampled_from([-1e6, 1e6, 0.0, 3e38, -3e38]), min_size=elements, max_size=elements)
    honest = draw(st.lists(row, min_size=count - bad, max_size=count - bad))
    return honest, draw(st.permutations(honest + draw(st.lists(far, min_size=bad, max_size=bad))))


@pytest.mark.parametrize("reduce", [*COORDINATEWISE, Bulyan(1)], ids=repr)
@given(data=st.data())
@settings(deadline=None, max_examples=10)
def test_each_coordinate_stays_within_the_range_of_the_honest(reduce: Robust, data: st.DataObject) -> None:
    honest, rows = data.draw(corrupted(reduce))
    found, sound = reduced(reduce, rows), torch.tensor(honest)
    assert (found >= sound.min(0).values - 1e-5).all()
    assert (found <= sound.max(0).values + 1e-5).all()


@pytest.mark.parametrize("reduce", WITHSTANDING, ids=repr)
@given(data=st.data())
@settings(deadline=None, max_examples=10)
def test_the_center_stays_near_the_honest(reduce: Robust, data: st.DataObject) -> None:
    """Within a small multiple of how far the honest lie apart, which corrupted numbers do not enter."""
    honest, rows = data.draw(corrupted(reduce))
    sound = torch.tensor(honest).double()
    apart = torch.cdist(sound, sound).max() + 0.1
    nearest = (sound - reduced(reduce, rows).double()).norm(dim=1).min()
    assert nearest <= 2 * len(rows) * apart


@pytest.mark.parametrize("reduce", SIX, ids=repr)
def test_buffers_and_extras_are_as_robust_as_the_direction(reduce: Robust) -> None:
    """The direction of the corrupted update is sound, all else of it is not."""

    def update(number: float, count: int, flag: bool) -> Update:
        buffers = {"float32": torch.tensor([number]), "int64": torch.tensor([count]), "bool": torch.tensor([flag])}
        return Update({"float32": torch.ones(1)}, buffers, {"control": {"float32": buffers["float32"]}})

    found = reduce_all(reduce, STATE, [*[update(1.0, 7, False)] * 4, update(1e6, 2**60, True)])
    exact = {name: vector.tolist() for name, vector in found.buffers.items() if name != "float32"}
    assert exact == {"int64": [7], "bool": [False]}
    assert (found.buffers["int64"].dtype, found.buffers["bool"].dtype) == (torch.int64, torch.bool)
    if withstood_by(reduce, 5):
        assert found.buffers["float32"].item() == pytest.approx(1.0, abs=1e-2)
        assert found.extras["control"]["float32"].item() == pytest.approx(1.0, abs=1e-2)


@pytest.mark.parametrize("reduce", SIX, ids=repr)
def test_a_weight_buys_nothing(reduce: Robust) -> None:
    rows = [[1.0], [2.0], [3.0], [4.0], [9.0]]
    plain = reduce_all(reduce, STATE, updates_of(rows))
    heavy = reduce_all(reduce, STATE, updates_of(rows, [1, 1, 1, 1, 10**9]))
    assert torch.equal(plain.direction["float32"], heavy.direction["float32"])
    assert heavy.weight == 10**9 + 4


@pytest.mark.parametrize("reduce", SIX, ids=repr)
def test_every_dtype_comes_back_in_its_own_vector(reduce: Robust) -> None:
    rows = [torch.tensor([n]).double() for n in range(1, 6)]
    both = [Update({"bfloat16": torch.cat([row, row]).bfloat16(), "float64": 10 * row}) for row in rows]
    found = reduce_all(reduce, STATE, both).direction
    shapes = {"bfloat16": (torch.bfloat16, (2,)), "float64": (torch.float64, (1,))}
    assert {name: (vector.dtype, vector.shape) for name, vector in found.items()} == shapes
    assert found["float64"].item() == pytest.approx(10 * found["bfloat16"][0].item(), rel=1e-2)


def test_a_start_at_one_of_the_updates_is_left_where_it_is_not_the_best() -> None:
    """The median of each coordinate is the first point, which sees the two others at less than 120 degrees."""
    points = torch.tensor([[0.0, 0.0], [-1.0, 2.0], [10.0, -0.1]])
    found = GeometricMedian().center(points)
    assert (points - found).norm(dim=1).sum() < points.norm(dim=1).sum()


def test_more_than_half_at_one_place_are_that_place_to_the_bit() -> None:
    points = torch.tensor([[0.1, 0.7], [0.1, 0.7], [0.1, 0.7], [5.0, -3e38], [1e6, 2.0]])
    assert torch.equal(GeometricMedian().center(points), points[0])


@given(st.integers(3, 8), st.integers(0, 99), st.integers(0, 7))
@settings(deadline=None, max_examples=25)
def test_no_point_around_has_a_smaller_sum_of_distances(count: int, seed: int, direction: int) -> None:
    points = torch.randn(count, 4, generator=torch.Generator().manual_seed(seed)).double()
    found = GeometricMedian(steps=1000, tolerance=1e-9, smoothing=1e-6).center(points)

    def total(point: torch.Tensor) -> float:
        return (points - point).norm(dim=1).sum().item()

    around = 0.05 * torch.eye(4).double().repeat(2, 1)[direction] * (1 if direction < 4 else -1)
    assert total(found) <= total(found + around) + 1e-6


FOUR, SEVEN = [1.0, 2.0, 2.5, 4.0], [0.0, 1.0, 2.0, 3.0, 4.0, 5.5, 1e6]


@pytest.mark.parametrize(
    ("reduce", "points", "wanted"),
    [
        # With f = 1 the two nearest count: sums of squares 3.25, 1.25, 2.5, 6.25, and that of the last.
        (Krum(1), [*FOUR, 1e6], 2.0),
        (Krum(1, keep=2), [*FOUR, 1e6], 2.25),
        (Krum(1, keep=3), [*FOUR, 1e6], (1.0 + 2.0 + 2.5) / 3),
        # Two that are equal are each other's nearest, but with f = 2 a score counts three: 6 for 1, 2 and 3.
        (Krum(2), [0.0, 1.0, 2.0, 3.0, 4.0, 50.0, 50.0], 1.0),
        # With f = 1 of 5 a score counts two: three that agree have each other, and break it.
        (Krum(1), [1.0, 2.0, 1e6, 1e6, 1e6], 1e6),
        (Krum(0), [1.0, 0.0, 1.0, 0.0], 1.0),  # of equals the first
        (Krum(2), [*FOUR, 3e38, -3e38, 3e38], 2.5),  # distances beyond the type do not confuse it
        # Of seven, Krum selects the five from 0 to 4; their median is 2, and the mean of the three nearest, too.
        (Bulyan(1), SEVEN, 2.0),
        (Bulyan(0), [0.0, 1.0, 5.0], 2.0),
        (Median(), [5.0, 1.0, 2.0], 2.0),
        (Median(), [5.0, 1.0, 2.0, 9.0], 3.5),
        (TrimmedMean(0), [3.0, -100.0, 2.0, 50.0, 7.0], -38 / 5),
        (TrimmedMean(1), [3.0, -100.0, 2.0, 50.0, 7.0], 12 / 3),
        (TrimmedMean(2), [3.0, -100.0, 2.0, 50.0, 7.0], 3.0),
    ],
    ids=str,
)
def test_centers_by_hand(reduce: Robust, points: list[float], wanted: float) -> None:
    assert reduced(reduce, [[point] for point in points]).item() == pytest.approx(wanted)


def test_krum_takes_one_update_whole_and_not_coordinate_by_coordinate() -> None:
    points = torch.tensor([[0.0, 1.0], [0.1, 1.1], [0.2, 0.9], [0.1, 0.9], [-1e6, 1e6]])
    found = Krum(1).center(points)
    assert any(torch.equal(found, point) for point in points[:4])


def test_each_coordinate_is_trimmed_by_itself() -> None:
    points = torch.tensor([[0.0, 9.0], [1.0, -9.0], [5.0, 1.0]])
    assert TrimmedMean(1).center(points).tolist() == [1.0, 1.0]


@pytest.mark.parametrize("reduce", [*COORDINATEWISE, GeometricMedian(), Mean()], ids=repr)
def test_one_more_corrupted_update_breaks_it(reduce: Robust) -> None:
    def spoilt(count: int) -> float:
        return reduced(reduce, [[1.0 + n / 100] for n in range(9 - count)] + [[1e6]] * count).item()

    withstood = withstood_by(reduce, 9) if isinstance(reduce, Robust) else 0
    assert spoilt(withstood) < 2
    assert spoilt(withstood + 1) > 1e3
