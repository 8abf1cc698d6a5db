"""How many classes a built-in network gets, and labels that are not numbered from 0 upwards."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import roundweave as rw
from roundweave.flows.planning.describing import objective_for
from roundweave.storage.errors import DataError
from roundweave.tasks.data.collating import examples_of
from roundweave.tasks.data.description import Description, combine
from tests.conftest import Train


class Given(rw.Source):
    """Examples of two numbers with these targets; with `told` the data set says how many classes there are."""

    def __init__(self, targets: Any, told: int = 0) -> None:
        self.targets, self.told = torch.as_tensor(np.asarray(targets)), told

    def load(self, partition: int, partitions: int) -> rw.Dataset:
        return rw.Dataset(rw.Examples(torch.zeros(len(self.targets), 2), self.targets), classes=self.told)


def described(targets: Any, told: int = 0) -> Description:
    return rw.Partitions(Given(targets, told), rw.Split(2)).describe(0)


ROWS = np.arange(200)


@pytest.mark.parametrize("largest", [20_000, 10**6 - 1, 2**40, 2**63 - 1])
def test_sparse_labels_are_refused_in_one_line_for_built_in_networks(largest: int) -> None:
    says = f"labels go up to {largest}, and 2 different ones occur; number them from 0 upwards, use a network of"
    found = described(ROWS % 2 * largest)
    with pytest.raises(DataError, match=says):
        objective_for(rw.TrainConfig(model="mlp"), found)
    with pytest.raises(DataError, match=says.replace("and 2", "and 4")):
        objective_for(rw.TrainConfig(model="mlp"), combine([found, found]))
    with pytest.raises(DataError, match=says):
        rw.label_counts(rw.Partitions(Given(ROWS % 2 * largest), rw.Split(2)))


@pytest.mark.parametrize(
    ("targets", "told", "fields", "outputs"),
    [
        (ROWS % 10, 0, {}, 10),
        (ROWS % 10 + 1, 0, {}, 11),
        (ROWS % 2 * 999, 0, {}, 1000),
        (ROWS % 2 * 9_999, 0, {}, 10_000),
        (ROWS * 90, 0, {}, 17_911),
        (ROWS % 2, 50_000, {}, 50_000),
        (np.stack([ROWS % 5, ROWS % 2 * 50_256], axis=1), 0, {}, 50_257),
        (ROWS % 2 * 2**40, 0, {"loss": "mse"}, 1),
        (ROWS % 2 * 2**40, 0, {"model": "linear"}, 1),
        (ROWS % 2 * 20_000, 0, {"loss": lambda outputs, targets: (outputs[:, 0] - targets) ** 2}, 20_001),
        (ROWS % 2 * 20_000, 0, {"model": lambda: torch.nn.Linear(2, 20_001)}, 20_001),
    ],
)
def test_other_labels_have_an_output_each(targets, told: int, fields: dict[str, Any], outputs: int) -> None:
    """Also vocabularies, few of many classes, classes that are told, and what is no built-in network or loss."""
    objective = objective_for(rw.TrainConfig(**{"model": "mlp", **fields}), described(targets, told))
    assert objective.model.outputs == outputs


def test_sparse_labels_end_a_run_before_a_network_is_built(train: Train, tmp_path) -> None:
    np.savez(tmp_path / "a.npz", x=np.zeros((200, 2)), y=ROWS % 10 * 111_111)
    with pytest.raises(DataError, match="labels go up to 999999, and 10 different ones occur"):
        train(data=f"npz:{tmp_path / 'a.npz'}", partitions=2, rounds=1)


def test_unsigned_numbers_that_int64_cannot_hold_are_refused() -> None:
    """As int64, 2^63 + 5 would be -2^63 + 5."""
    with pytest.raises(DataError, match=r"mine gives whole numbers of 2\^63 and more; subtract a constant"):
        examples_of(np.full((2, 1), 2**63 + 5, np.uint64), [0, 1], "mine")
    assert examples_of(np.full((2, 1), 2**63 - 1, np.uint64), [0, 1], "mine").inputs.tolist() == [[2**63 - 1]] * 2
