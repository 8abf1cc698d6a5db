"""What a result says of two sets of tensors, by hand-computed numbers."""

from __future__ import annotations

import torch

from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.tasks.rounds.evidence.results import Difference, record_difference, tensor_difference


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
