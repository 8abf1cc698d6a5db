"""A batch of examples that are given one by one: stacked by hand."""

from __future__ import annotations

from collections import UserDict
from typing import Any

import numpy as np
import pytest
import torch

from roundweave.storage.errors import DataError
from roundweave.tasks.data.collating import TARGETS, batch_of, collated
from roundweave.tasks.data.examples import Examples


def plain(tensors: Any) -> Any:
    named = isinstance(tensors, dict)
    return {name: plain(tensor) for name, tensor in tensors.items()} if named else tensors.tolist()


@pytest.mark.parametrize(
    ("items", "inputs", "targets"),
    [
        ([([1, 2], 0), ([3, 4], 1)], [[1, 2], [3, 4]], [0, 1]),
        ([[torch.tensor([1.5]), 0.5], [np.array([2.5]), 1.5]], [[1.5], [2.5]], [0.5, 1.5]),
        ([({"a": [1], "b": 2}, 0), ({"b": 4, "a": [3]}, 1)], {"a": [[1], [3]], "b": [2, 4]}, [0, 1]),
        (
            [([1], {"kind": 0, "x": 0.5}), ([2], {"kind": 1, "x": 1.5})],
            [[1], [2]],
            {"kind": [0, 1], "x": [0.5, 1.5]},
        ),
        ([{"x": 1, "labels": 0}, {"labels": 1, "x": 2}], {"x": [1, 2]}, [0, 1]),
        ([UserDict(x=1, label=0), UserDict(x=2, label=1)], {"x": [1, 2]}, [0, 1]),
    ],
)
def test_pairs_and_dicts_are_stacked_by_name(items: list, inputs: Any, targets: Any) -> None:
    batch = collated(items, "mine")
    assert (plain(batch.inputs), plain(batch.targets)) == (inputs, targets)


@pytest.mark.parametrize("name", TARGETS)
def test_targets_have_one_of_some_names(name: str) -> None:
    batch = batch_of({"x": [1.0, 2.0], name: [0, 1]}, "mine")
    assert (plain(batch.inputs), plain(batch.targets)) == ({"x": [1.0, 2.0]}, [0, 1])


def test_of_two_names_that_targets_may_have_labels_counts() -> None:
    batch = batch_of({"target": [5, 6], "labels": [0, 1]}, "mine")
    assert (plain(batch.inputs), plain(batch.targets)) == ({"target": [5, 6]}, [0, 1])


@pytest.mark.parametrize("kind", [torch.int32, torch.uint8, torch.int16])
def test_labels_of_any_integers_are_int64(kind: torch.dtype) -> None:
    assert batch_of((torch.ones(2, 1), torch.tensor([0, 1], dtype=kind)), "mine").targets.dtype == torch.int64


def test_a_batch_that_is_one_already_is_taken_as_it_is() -> None:
    batch = Examples(torch.ones(2, 1), torch.ones(2))
    assert batch_of(batch, "mine") is batch


@pytest.mark.parametrize(
    ("batch", "says"),
    [
        ((torch.ones(2),), "a batch must be a pair of inputs and targets, or a dict with labels, not tuple"),
        (
            (torch.ones(2), torch.ones(3)),
            r"arrays have shapes \(2,\), \(3,\); give all the same number",
        ),
        ((torch.ones(0, 2), torch.ones(0)), r"arrays have shapes \(0, 2\), \(0,\); give .* at least one"),
        ((torch.tensor(1.0), torch.tensor(2.0)), r"arrays have shapes \(\), \(\); give all"),
        (({"a": torch.ones(2), "b": torch.ones(4)}, torch.ones(2)), r"arrays have shapes \(2,\), \(4,\), \(2,\)"),
        (("ab", torch.ones(2)), "a batch holds a str where an array of examples belongs"),
        ((np.array(["a", "b"]), torch.ones(2)), "do not stack to one array: TypeError"),
        ((None, torch.ones(2)), "a batch holds a NoneType where an array of examples belongs"),
        ({"labels": [0, 1]}, "a batch of labels needs inputs, and targets called labels"),
        ({}, "a batch of  needs inputs"),
    ],
)
def test_other_batches_are_refused_in_one_line(batch: Any, says: str) -> None:
    with pytest.raises(DataError, match=says) as caught:
        batch_of(batch, "mine")
    assert str(caught.value).startswith("mine: ")
