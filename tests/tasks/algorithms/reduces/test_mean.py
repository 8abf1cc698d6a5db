"""The mean by hand, and reduces by name."""

from __future__ import annotations

import pickle

import pytest
import torch

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State, Update
from roundweave.tasks.algorithms.algebra import Reduce
from roundweave.tasks.algorithms.reduces.mean import ClippedMean, Mean, Normalised
from roundweave.tasks.algorithms.reduces.robust import GeometricMedian, Krum, Median, TrimmedMean
from roundweave.tasks.algorithms.reduces.table import REDUCES, find_reduce
from roundweave.tasks.algorithms.reduces.tree import reduce_all
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.numerics.pieces import ALONE, PIECE, accumulator
from tests.tasks.sampled import sampled

STATE = State({})


def mean(*updates: Update) -> Update:
    return reduce_all(Mean(), STATE, updates)


def test_updates_count_by_their_weights() -> None:
    left = Update({"float32": torch.tensor([1.0, 0.0])}, weight=3)
    right = Update({"float32": torch.tensor([5.0, 8.0])}, weight=1)
    found = mean(left, right)
    assert found.direction["float32"].tolist() == [2.0, 2.0]
    assert found.weight == 4


@pytest.mark.parametrize(("weighted", "direction"), [(True, 2.25 * 1.75), (False, 2.5 * 2.5)])
def test_steps_are_normalised_by_hand(weighted: bool, direction: float) -> None:
    """2 in 1 step and 12 in 4 are 2 and 3 a step; their mean is 2.25 or 2.5, and that of the steps 1.75 or 2.5."""
    updates = [
        Update({"float64": torch.tensor([moved], dtype=torch.float64)}, weight=weight, metrics={"walked": steps})
        for moved, steps, weight in ((2.0, 1.0, 3), (12.0, 4.0, 1))
    ]
    found = reduce_all(Normalised(weighted=weighted), STATE, updates).direction["float64"].item()
    assert found == pytest.approx(direction)


def test_every_dtype_keeps_its_own_vector_and_type() -> None:
    vectors = [{"float32": torch.tensor([n]), "float64": torch.tensor([2 * n]).double()} for n in (1.0, 2.0)]
    found = mean(*(Update(v) for v in vectors)).direction
    assert {name: (vector.dtype, vector.tolist()) for name, vector in found.items()} == {
        "float32": (torch.float32, [1.5]),
        "float64": (torch.float64, [3.0]),
    }


def test_integer_and_bool_buffers_take_the_maximum_and_floats_the_mean() -> None:
    def buffers(number: int, flag: bool, statistic: float) -> dict[str, torch.Tensor]:
        return {
            "int64": torch.tensor([number]),
            "bool": torch.tensor([flag]),
            "float32": torch.tensor([statistic]),
        }

    updates = [
        Update({}, buffers(3, False, 1.0), weight=1),
        Update({}, buffers(7, True, 2.0), weight=2),
        Update({}, buffers(-5, False, 5.0), weight=1),
    ]
    found = mean(*updates).buffers
    assert {name: vector.tolist() for name, vector in found.items()} == {
        "int64": [7],
        "bool": [True],
        "float32": [2.5],
    }
    assert (found["int64"].dtype, found["bool"].dtype) == (torch.int64, torch.bool)


def test_large_integers_are_not_rounded() -> None:
    updates = [Update({}, {"int64": torch.tensor([2**60 + n])}) for n in range(3)]
    assert mean(*updates).buffers["int64"].item() == 2**60 + 2


def test_extras_are_reduced_like_the_direction() -> None:
    updates = [Update({}, extras={"control": {"float32": torch.tensor([n])}}, weight=int(n)) for n in (1.0, 3.0)]
    assert mean(*updates).extras["control"]["float32"].tolist() == [2.5]


def test_bfloat16_is_summed_in_float32() -> None:
    """In bfloat16, 256 + 1 is 256 again: the sum of 256 and 256 ones would stay there."""
    updates = [
        Update({"bfloat16": torch.tensor([number], dtype=torch.bfloat16)}) for number in [256.0] + [1.0] * 255
    ]
    found = mean(*updates).direction["bfloat16"]
    assert found.dtype == torch.bfloat16
    assert found.item() == torch.tensor((256 + 255) / 256).to(torch.bfloat16).item() == 2.0


def test_the_weight_is_not_rounded_to_the_tensors_type() -> None:
    updates = [Update({"bfloat16": torch.ones(1, dtype=torch.bfloat16)}, weight=257) for _ in range(2)]
    assert mean(*updates).direction["bfloat16"].item() == 1.0
    assert mean(*updates).weight == 514


@pytest.mark.parametrize(
    ("dtype", "wanted"),
    [
        ("float64", torch.float64),
        ("float32", torch.float32),
        ("bfloat16", torch.float32),
        ("float16", torch.float32),
    ],
)
def test_sums_are_kept_in_float32_but_those_of_float64(dtype, wanted) -> None:
    assert accumulator(dtype) == wanted


def test_a_lone_update_is_neither_multiplied_nor_divided() -> None:
    lone = Update({"float32": torch.tensor([1e-45, 3e38])}, weight=7, metrics={"train_loss": 1.0})
    assert all(mean(lone).direction[k] is vector for k, vector in lone.direction.items())
    assert mean(lone) == lone


def test_reducing_leaves_the_updates_as_they_were() -> None:
    updates = [Update({"float32": torch.ones(2)}, {"int64": torch.ones(1).long()}, weight=n) for n in (1, 2, 3)]
    mean(*updates)
    assert all(update.direction["float32"].tolist() == [1, 1] for update in updates)
    assert all(update.buffers["int64"].tolist() == [1] for update in updates)


def test_a_plain_mean_counts_each_update_as_one() -> None:
    """Nguyen et al. 2022, Algorithm 1: (1 + 5 + 6) / 3 is 4, where weights of 1, 3 and 8 would give 5.33."""
    updates = [
        Update({"float64": torch.tensor([n]).double()}, weight=w) for n, w in ((1.0, 1), (5.0, 3), (6.0, 8))
    ]
    mean = find_reduce("plain_mean")
    reduced = mean.finish(State({}), mean.join(mean.join(updates[0], updates[1]), updates[2]))
    assert (reduced.direction["float64"].tolist(), reduced.weight) == ([4.0], 3)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("mean", Mean()),
        ("plain_mean", Mean(weighted=False)),
        ("median", Median()),
        ("trimmed_mean:2", TrimmedMean(2)),
        ("krum:1", Krum(1)),
        ("krum:1:3", Krum(1, keep=3)),
        ("geometric_median", GeometricMedian()),
    ],
)
def test_a_name_and_its_arguments_are_a_value(text: str, wanted: Reduce) -> None:
    found = find_reduce(text)
    assert found == wanted == pickle.loads(pickle.dumps(found))
    assert eval(repr(found)) == wanted
    assert build_algorithm("fed_avg", {}, {"reduce": text}).reduce == wanted
    assert build_algorithm("matched", {"average": text}).reduce.averaging == wanted


@pytest.mark.parametrize("name", REDUCES)
def test_every_reduce_of_the_table_pickles_and_prints_itself(name: str) -> None:
    argument = REDUCES[name].argument
    reduce = find_reduce(name if not argument or argument.startswith("[") else f"{name}:1")
    assert pickle.loads(pickle.dumps(reduce)) == reduce
    assert repr(reduce).startswith(f"{type(reduce).__name__}(")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("medain", r"unknown reduce 'medain'; did you mean median\? There are mean, plain_mean"),
        ("trimmed_mean", "reduce trimmed_mean needs its F: trimmed_mean:F"),
        ("krum:one", r"must be written krum:F\[:KEEP\]"),
        ("krum:-1", "Krum withstands f = 0 or more corrupted updates, not -1"),
        ("krum:1:0", "krum keeps 1 update or more, not 0"),
        ("trimmed_mean:-1", "TrimmedMean withstands f = 0 or more corrupted updates, not -1"),
        ("geometric_median:0", "geometric_median takes steps from 1"),
    ],
)
def test_what_cannot_be_meant_is_refused_at_once(text: str, reason: str) -> None:
    with pytest.raises(UsageError, match=reason):
        build_algorithm("fed_avg", {}, {"reduce": text})


def test_an_update_is_clipped_before_the_mean_and_never_lengthened() -> None:
    """(3, 4) of norm 5 becomes (0.6, 0.8), beside (0, 0.5); weights are 3 and 1. All dtypes have one norm."""
    rows = [
        ({"float64": torch.tensor([3.0, 4.0]).double()}, 3),
        ({"float64": torch.tensor([0.0, 0.5]).double()}, 1),
    ]
    found = reduce_all(ClippedMean(norm=1.0), State({}), [Update(d, weight=w) for d, w in rows])
    assert found.direction["float64"].tolist() == pytest.approx([0.45, 0.725])
    mixed = Update({"float64": torch.tensor([3.0]).double(), "float32": torch.tensor([4.0])})
    alone = reduce_all(ClippedMean(norm=1.0), State({}), [mixed]).direction
    assert [alone[k].item() for k in ("float64", "float32")] == pytest.approx([0.6, 0.8])
    with pytest.raises(UsageError, match=r"clipped_mean takes a norm above 0, not 0\.0"):
        find_reduce("clipped_mean:0")


def test_extras_are_clipped_each_by_its_own_norm() -> None:
    """(30, 40) of norm 50 becomes (0.6, 0.8) beside a direction (0.3, 0.4), which stays; the mean with zeros."""
    long, short, none = (torch.tensor(numbers) for numbers in ([30.0, 40.0], [0.3, 0.4], [0.0, 0.0]))
    for slot in ("control", "momentum"):
        sent = Update({"float32": short}, extras={slot: {"float32": long}, "other": {"float32": short}})
        alone = reduce_all(ClippedMean(norm=1.0), State({}), [sent])
        assert alone.direction["float32"].tolist() == alone.extras["other"]["float32"].tolist() == short.tolist()
        assert alone.extras[slot]["float32"].tolist() == pytest.approx([0.6, 0.8])
        quiet = Update({"float32": none}, extras={slot: {"float32": none}, "other": {"float32": none}})
        mean = reduce_all(ClippedMean(norm=1.0), State({}), [sent, quiet])
        assert mean.extras[slot]["float32"].tolist() == pytest.approx([0.3, 0.4])


@pytest.mark.parametrize(
    ("dtype", "reduce", "alone"),
    sampled(5, ["float32", "bfloat16", "float64"], [Mean(), Median(), TrimmedMean(1)], [0, ALONE]),
)
def test_large_vectors_have_the_bits_that_each_element_has_alone(
    dtype: str, reduce: Reduce, alone: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where several threads compute the pieces, which as few as here would not need."""
    monkeypatch.setattr("roundweave.tasks.numerics.pieces.ALONE", alone)

    def reduced(vectors: list[torch.Tensor]) -> torch.Tensor:
        updates = [Update({dtype: vector}, weight=weight) for weight, vector in enumerate(vectors, 3)]
        return reduce_all(reduce, STATE, updates).direction[dtype]

    vectors = [torch.randn(2 * PIECE + 3).to(getattr(torch, dtype)) for _ in range(3)]
    few = torch.tensor([0, 1, PIECE - 1, PIECE, 2 * PIECE, 2 * PIECE + 2])
    assert torch.equal(reduced(vectors)[few], reduced([vector[few] for vector in vectors]))
