"""What all robust reduces have in common, whatever is corrupted in an update."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from storage.errors import RoundFailed
from storage.values.state import State, Update
from tasks.reduces.mean import Mean
from tasks.reduces.robust.base import Robust
from tasks.reduces.robust.geometric_median import GeometricMedian
from tasks.reduces.robust.krum import Krum
from tasks.reduces.robust.median import Median
from tasks.reduces.robust.trimmed_mean import TrimmedMean
from tasks.reduces.tree import reduce_all

STATE = State({}, round=6)
SIX = [Median(), TrimmedMean(0), TrimmedMean(2), Krum(1), Krum(1, keep=3), GeometricMedian()]
COORDINATEWISE = [Median(), TrimmedMean(1), TrimmedMean(3)]
WITHSTANDING = [*COORDINATEWISE, Krum(1), Krum(2), GeometricMedian()]

numbers = st.floats(-10, 10, width=32)


def updates_of(rows: list[list[float]], weights: list[int] | None = None) -> list[Update]:
    weights = weights or [1] * len(rows)
    return [Update({"float32": torch.tensor(row)}, weight=w) for row, w in zip(rows, weights, strict=True)]


def reduced(reduce: Robust, rows: list[list[float]]) -> torch.Tensor:
    return reduce_all(reduce, STATE, updates_of(rows)).direction["float32"]


@st.composite
def corrupted(draw: st.DrawFn, reduce: Robust, elements: int = 3) -> tuple[list[list[float]], list[list[float]]]:
    """Honest updates, and as many corrupted ones as the reduce withstands, among which they are mixed."""
    count = draw(st.integers(max(reduce.needs, 3), 9))
    bad = reduce.breakdown(count)
    row = st.lists(numbers, min_size=elements, max_size=elements)
    far = st.lists(st.sampled_from([-1e6, 1e6, 0.0, 3e38, -3e38]), min_size=elements, max_size=elements)
    honest = draw(st.lists(row, min_size=count - bad, max_size=count - bad))
    return honest, draw(st.permutations(honest + draw(st.lists(far, min_size=bad, max_size=bad))))


@pytest.mark.parametrize("reduce", COORDINATEWISE, ids=repr)
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_each_coordinate_stays_within_the_range_of_the_honest(reduce: Robust, data: st.DataObject) -> None:
    honest, rows = data.draw(corrupted(reduce))
    found, sound = reduced(reduce, rows), torch.tensor(honest)
    assert (found >= sound.min(0).values - 1e-5).all()
    assert (found <= sound.max(0).values + 1e-5).all()


@pytest.mark.parametrize("reduce", WITHSTANDING, ids=repr)
@given(data=st.data())
@settings(deadline=None, max_examples=60)
def test_the_center_stays_near_the_honest(reduce: Robust, data: st.DataObject) -> None:
    """Within a small multiple of how far the honest lie apart, which corrupted numbers do not enter."""
    honest, rows = data.draw(corrupted(reduce))
    sound = torch.tensor(honest).double()
    apart = torch.cdist(sound, sound).max() + 0.1
    nearest = (sound - reduced(reduce, rows).double()).norm(dim=1).min()
    assert nearest <= 2 * len(rows) * apart


@pytest.mark.parametrize("reduce", [*COORDINATEWISE, GeometricMedian(), Mean()], ids=repr)
def test_one_more_corrupted_update_breaks_it(reduce: Robust) -> None:
    def spoilt(count: int) -> float:
        return reduced(reduce, [[1.0 + n / 100] for n in range(9 - count)] + [[1e6]] * count).item()

    withstood = reduce.breakdown(9) if isinstance(reduce, Robust) else 0
    assert spoilt(withstood) < 2
    assert spoilt(withstood + 1) > 1e3


@pytest.mark.parametrize("reduce", SIX, ids=repr)
def test_buffers_and_extras_are_as_robust_as_the_direction(reduce: Robust) -> None:
    """The direction of the corrupted update is sound, all else of it is not."""
    bad = torch.tensor([1e6])
    updates = [
        Update(
            {"float32": torch.tensor([number])},
            {"float32": torch.tensor([number]), "int64": torch.tensor([7]), "bool": torch.tensor([False])},
            {"control": {"float32": torch.tensor([number])}},
        )
        for number in (1.0, 1.0, 1.0, 1.0)
    ]
    poison = Update(
        {"float32": torch.ones(1)},
        {"float32": bad, "int64": torch.tensor([2**60]), "bool": torch.tensor([True])},
        {"control": {"float32": bad}},
    )
    found = reduce_all(reduce, STATE, [*updates, poison])
    exact = {name: vector.tolist() for name, vector in found.buffers.items() if name != "float32"}
    assert exact == {"int64": [7], "bool": [False]}
    assert (found.buffers["int64"].dtype, found.buffers["bool"].dtype) == (torch.int64, torch.bool)
    if reduce.breakdown(5):
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
    rows = [1.0, 2.0, 3.0, 4.0, 5.0]
    both = [
        Update({"bfloat16": torch.tensor([n, n]).bfloat16(), "float64": torch.tensor([10 * n]).double()})
        for n in rows
    ]
    found = reduce_all(reduce, STATE, both).direction
    assert {name: (vector.dtype, vector.shape) for name, vector in found.items()} == {
        "bfloat16": (torch.bfloat16, (2,)),
        "float64": (torch.float64, (1,)),
    }
    assert found["float64"].item() == pytest.approx(10 * found["bfloat16"][0].item(), rel=1e-2)


@pytest.mark.parametrize("reduce", [Median(), GeometricMedian(), TrimmedMean(0)], ids=repr)
def test_a_lone_update_passes_with_its_bits(reduce: Robust) -> None:
    lone = Update({"float32": torch.tensor([1e-45, 3e38, -0.1])})
    assert torch.equal(reduce_all(reduce, STATE, [lone]).direction["float32"], lone.direction["float32"])


@pytest.mark.parametrize(
    ("reduce", "needed"), [(TrimmedMean(1), 3), (TrimmedMean(4), 9), (Krum(0), 3), (Krum(1), 5), (Krum(1, 6), 7)]
)
def test_too_few_updates_fail_the_round(reduce: Robust, needed: int) -> None:
    reduced(reduce, [[float(n)] for n in range(needed)])
    with pytest.raises(
        RoundFailed, match=rf"^round 7: .*needs {needed} updates, {needed - 1} were accepted; use more"
    ):
        reduced(reduce, [[float(n)] for n in range(needed - 1)])


def test_a_corrupted_partition_breaks_the_mean_of_a_run_but_not_its_median(train, own) -> None:
    """The partition with one example more sends back a thousand times its direction, the other way."""
    source = """
from dataclasses import dataclass, replace
from roundweave import Algorithm, LocalSteps, Map, Mean, Median, Sgd
@dataclass(frozen=True)
class Poison(Map):
    def __call__(self, objective, state, examples, carry, seed):
        update = LocalSteps(local_epochs=1)(objective, state, examples, carry, seed)
        bad = {k: -1000 * v for k, v in update.direction.items()}
        return replace(update, direction=bad) if len(examples) == 540 else update
def mean():
    return Algorithm(Poison(), Mean(), Sgd(1.0))
def median():
    return Algorithm(Poison(), Median(), Sgd(1.0))
"""
    path = own(source)
    fields = {"model": "logistic", "partitions": 3, "rounds": 3}
    broken, kept = (train(algorithm=f"{path}:{name}", name=name, **fields) for name in ("mean", "median"))
    assert broken.round(3).score.accuracy < 0.5
    assert kept.round(3).score.accuracy > 0.8
