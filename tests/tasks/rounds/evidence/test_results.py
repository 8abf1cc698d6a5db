"""What a result says of two sets of tensors, by hand-computed numbers."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.values.digests import tensor_digest
from roundweave.tasks.rounds.evidence.results import (
    Difference,
    largest_difference,
    record_difference,
    tensor_difference,
)

NAN, INF = math.nan, math.inf
FLOATS = st.lists(st.floats(width=32, allow_nan=True, allow_infinity=True), min_size=3, max_size=3)


@pytest.mark.parametrize(
    ("some", "others", "largest"),
    [
        ([1.0, 2.0, 3.0], [1.0, 2.5, 2.0], 1.0),
        ([NAN, INF, -INF], [NAN, INF, -INF], 0.0),
        ([NAN, 1.0, 1.0], [2.0, 1.0, 1.0], INF),
        ([INF, 1.0, 1.0], [-INF, 1.0, 1.0], INF),
        ([0.0, 1.0, 1.0], [-0.0, 1.0, 1.0], 0.0),
        ([], [], 0.0),
    ],
)
def test_the_largest_difference(some, others, largest: float) -> None:
    assert largest_difference(torch.tensor(some), torch.tensor(others)) == largest


def test_the_largest_difference_of_other_types() -> None:
    assert largest_difference(torch.tensor([3, 9]), torch.tensor([5, 9])) == 2.0
    assert largest_difference(torch.tensor([True, False]), torch.tensor([True, True])) == 1.0
    assert largest_difference(torch.tensor([1.0], dtype=torch.bfloat16), torch.tensor([0.5])) == 0.5
    assert largest_difference(torch.tensor([3 + 4j]), torch.tensor([0j])) == 5.0


@given(FLOATS, FLOATS)
def test_tensors_differ_where_their_digests_do(some: list[float], others: list[float]) -> None:
    now, then = torch.tensor(some), torch.tensor(others)
    found = tensor_difference({"a": now}, {"a": then})
    assert (found is None) == (tensor_digest("a", now) == tensor_digest("a", then))
    assert largest_difference(now, then) == largest_difference(then, now) >= 0


def test_the_first_tensor_that_differs_is_named() -> None:
    one, two = torch.ones(2), torch.full((2,), 2.0)
    assert tensor_difference({"a": one, "b": two, "c": two}, {"a": one, "b": one, "c": one}, 3) == Difference(
        "b", 3, 1.0
    )
    assert tensor_difference({"a": one}, {"a": one, "b": one}) == Difference("b", said="it is only stored")
    assert tensor_difference({"a": one, "b": one}, {"a": one}) == Difference("b", said="it is only replayed")
    zeros = tensor_difference({"a": torch.zeros(1)}, {"a": -torch.zeros(1)})
    assert zeros == Difference("a", None, 0.0, "only signs of zeros or kinds of NaN")


def test_records_of_updates() -> None:
    stored = UpdateRecord("d", 5, "direction of fc1.weight has 1 non-finite of 4 numbers")
    assert record_difference(1, stored, stored) is None
    assert record_difference(1, stored, None) == Difference("update", 1, said="it took no part")
    assert record_difference(1, UpdateRecord("d", 6, stored.refused), stored).said == "6 instead of 5"
    refused = record_difference(1, UpdateRecord("d", 5), stored)
    assert (refused.path, refused.said) == ("refused", f"None instead of {stored.refused}")
