"""The mean by hand, and reduces by name."""

from __future__ import annotations

import pytest
import torch

from roundweave import GeometricMedian, Krum, Median, Reduce, State, TrimmedMean, Update, reduce_all
from roundweave.tasks.algorithms.reduces.mean import ClippedMean, Mean, Normalised
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.numerics.pieces import ALONE, PIECE, accumulator
from tests.rows import but_first

STATE = State({})


def mean(*updates: Update) -> Update:
    return reduce_all(Mean(), STATE, updates)


def test_directions_and_extras_count_by_their_weights_in_each_type() -> None:
    """(3 * 1 + 1 * 5) / 4 = 2 and (3 * 0 + 1 * 8) / 4 = 2."""

    def update(weight: int, *numbers: float) -> Update:
        vector = torch.tensor(numbers)
        extras = {"control": {"float32": vector + 1}}
        return Update({"float32": vector, "float64": 2 * vector.double()}, weight=weight, extras=extras)

    found = mean(update(3, 1.0, 0.0), update(1, 5.0, 8.0))
    assert found.direction["float32"].tolist() == [2.0, 2.0]
    assert found.direction["float64"].tolist() == [4.0, 4.0]
    assert found.extras["control"]["float32"].tolist() == [3.0, 3.0]
    assert found.weight == 4


def test_a_plain_mean_counts_each_update_as_one() -> None:
    """Nguyen et al. 2022, Algorithm 1: (1 + 5 + 6) / 3 is 4, where weights of 1, 3 and 8 would give 5.33."""
    numbers = ((1.0, 1), (5.0, 3), (6.0, 8))
    updates = [Update({"float64": torch.tensor([n]).double()}, weight=w) for n, w in numbers]
    reduced = reduce_all(Mean(weighted=False), STATE, updates)
    assert (reduced.direction["float64"].tolist(), reduced.weight) == ([4.0], 3)


@pytest.mark.parametrize(("weighted", "direction"), [(True, 2.25 * 1.75), (False, 2.5 * 2.5)])
def test_steps_are_normalised_by_hand(weighted: bool, direction: float) -> None:
    """2 in 1 step and 12 in 4 are 2 and 3 a step; their mean is 2.25 or 2.5, and that of the steps 1.75 or 2.5."""
    rows = ((2.0, 1.0, 3), (12.0, 4.0, 1))
    updates = [
        Update({"float64": torch.tensor([d]).double()}, weight=w, metrics={"walked": s}) for d, s, w in rows
    ]
    found = reduce_all(Normalised(weighted=weighted), STATE, updates).direction["float64"].item()
    assert found == pytest.approx(direction)


def test_integer_and_bool_buffers_take_the_maximum_and_floats_the_mean() -> None:
    """Also integers that no float holds."""
    rows = ((2**60, False, 1.0, 1), (2**60 + 1, True, 2.0, 2), (-5, False, 5.0, 1))
    types = ("int64", "bool", "float32")
    buffers = [dict(zip(types, map(torch.tensor, zip(row)), strict=False)) for row in rows]
    found = mean(*(Update({}, each, weight=row[-1]) for each, row in zip(buffers, rows, strict=True))).buffers
    exact = {"int64": [2**60 + 1], "bool": [True], "float32": [2.5]}
    assert {name: vector.tolist() for name, vector in found.items()} == exact
    assert (found["int64"].dtype, found["bool"].dtype) == (torch.int64, torch.bool)


def test_bfloat16_is_summed_in_float32() -> None:
    """In bfloat16, 256 + 1 is 256 again: the sum of 256 and 255 ones would stay there. Nor has it a 257."""
    numbers = [torch.tensor([number]).bfloat16() for number in [256.0] + [1.0] * 255]
    found = mean(*(Update({"bfloat16": number}, weight=257) for number in numbers))
    assert found.direction["bfloat16"].dtype == torch.bfloat16
    assert found.direction["bfloat16"].item() == torch.tensor((256 + 255) / 256).to(torch.bfloat16).item() == 2.0
    assert found.weight == 257 * 256
    types = {each: accumulator(each) for each in ("float64", "float32", "bfloat16", "float16")}
    assert types == dict.fromkeys(types, torch.float32) | {"float64": torch.float64}


# By name.


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mean", Mean()),
        ("plain_mean", Mean(weighted=False)),
        ("median", Median()),
        ("trimmed_mean:2", TrimmedMean(2)),
        ("krum:1:3", Krum(1, keep=3)),
        ("geometric_median", GeometricMedian()),
    ],
)
def test_a_name_and_its_arguments_are_a_value(text: str, wanted: Reduce) -> None:
    assert build_algorithm("fed_avg", {}, {"reduce": text}).reduce == wanted
    assert build_algorithm("matched", {"average": text}).reduce.averaging == wanted
    assert eval(repr(wanted)) == wanted


# Clipped.


def test_an_update_is_clipped_before_the_mean_and_never_lengthened() -> None:
    """(3, 4) of norm 5 becomes (0.6, 0.8), beside (0, 0.5); weights are 3 and 1. All dtypes have one norm."""
    rows = [((3.0, 4.0), 3), ((0.0, 0.5), 1)]
    updates = [Update({"float64": torch.tensor(numbers).double()}, weight=w) for numbers, w in rows]
    found = reduce_all(ClippedMean(norm=1.0), STATE, updates)
    assert found.direction["float64"].tolist() == pytest.approx([0.45, 0.725])
    mixed = Update({"float64": torch.tensor([3.0]).double(), "float32": torch.tensor([4.0])})
    alone = reduce_all(ClippedMean(norm=1.0), STATE, [mixed]).direction
    assert [alone[k].item() for k in ("float64", "float32")] == pytest.approx([0.6, 0.8])


def test_extras_are_clipped_each_by_its_own_norm() -> None:
    """(30, 40) of norm 50 becomes (0.6, 0.8) beside a direction (0.3, 0.4), which stays; the mean with zeros."""
    long, short, none = (torch.tensor(numbers) for numbers in ([30.0, 40.0], [0.3, 0.4], [0.0, 0.0]))
    sent = Update({"float32": short}, extras={"control": {"float32": long}, "other": {"float32": short}})
    alone = reduce_all(ClippedMean(norm=1.0), STATE, [sent])
    assert alone.direction["float32"].tolist() == alone.extras["other"]["float32"].tolist() == short.tolist()
    assert alone.extras["control"]["float32"].tolist() == pytest.approx([0.6, 0.8])
    quiet = Update({"float32": none}, extras={"control": {"float32": none}, "other": {"float32": none}})
    both = reduce_all(ClippedMean(norm=1.0), STATE, [sent, quiet])
    assert both.extras["control"]["float32"].tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize("alone", [0, ALONE], ids=["several threads", "one thread"])
@pytest.mark.parametrize(
    ("dtype", "reduce"), but_first([("float32", Mean()), ("bfloat16", Median())], [("float64", TrimmedMean(1))])
)
def test_large_vectors_have_the_bits_of_each_element_alone(dtype, reduce: Reduce, alone: int, monkeypatch) -> None:
    """Also where several threads compute the pieces, which as few as here would not need."""
    monkeypatch.setattr("roundweave.tasks.numerics.pieces.ALONE", alone)

    def reduced(vectors: list[torch.Tensor]) -> torch.Tensor:
        updates = [Update({dtype: vector}, weight=weight) for weight, vector in enumerate(vectors, 3)]
        return reduce_all(reduce, STATE, updates).direction[dtype]

    vectors = [torch.randn(2 * PIECE + 3).to(getattr(torch, dtype)) for _ in range(3)]
    few = torch.tensor([0, 1, PIECE - 1, PIECE, 2 * PIECE, 2 * PIECE + 2])
    assert torch.equal(reduced(vectors)[few], reduced([vector[few] for vector in vectors]))


def test_a_lone_update_is_neither_multiplied_nor_divided() -> None:
    lone = Update({"float32": torch.tensor([1e-45, 3e38])}, weight=7, metrics={"train_loss": 1.0})
    assert all(mean(lone).direction[k] is vector for k, vector in lone.direction.items())
    assert mean(lone) == lone
