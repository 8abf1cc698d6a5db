"""Examples of several data sets, one after another."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest
import torch

from storage.errors import DataError
from tasks.data.examples import Dataset, Examples, together
from tasks.data.sources.base import Each, Source


def examples(*numbers: float) -> Examples:
    return Examples(torch.tensor(numbers).reshape(-1, 1), torch.arange(len(numbers)))


def test_all_examples_come_in_order_and_shared_ones_are_held_out_once() -> None:
    shared = examples(7.0, 8.0)
    both = together([Dataset(examples(1.0, 2.0), shared), Dataset(examples(3.0), shared)])
    assert both.train.inputs.ravel().tolist() == [1.0, 2.0, 3.0]
    assert both.train.targets.tolist() == [0, 1, 0]
    assert both.held_out.inputs.ravel().tolist() == [7.0, 8.0]
    apart = together([Dataset(examples(1.0), examples(5.0)), Dataset(examples(2.0), examples(6.0))])
    assert apart.held_out.inputs.ravel().tolist() == [5.0, 6.0]
    assert together([Dataset(examples(1.0)), Dataset(examples(2.0))]).held_out is None


def test_examples_of_several_scalings_are_as_each_has_them() -> None:
    """(10 / 10 - 1) / 2 = 0 and (6 / 2 - 1) / 4 = 0.5."""
    one, other = Dataset(examples(10.0), scaling=(10, 1, 2)), Dataset(examples(6.0), scaling=(2, 1, 4))
    rows = np.arange(2)
    assert together([one, other]).take(rows, "float32").inputs.ravel().tolist() == [0.0, 0.5]
    assert together([one, one]).scaling == (10, 1, 2)


def test_examples_of_other_shapes_are_refused() -> None:
    wide = Dataset(Examples(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64)))
    with pytest.raises(DataError, match="different shapes or types"):
        together([Dataset(examples(1.0)), wide])


@dataclass(frozen=True)
class Number(Source):
    """One example, of a number."""

    number: float

    def load(self, partition: int, partitions: int) -> Dataset:
        """The example."""
        return Dataset(examples(self.number))


def test_of_one_partition_a_source_for_each_gives_them_all() -> None:
    each = Each((Number(1.0), Number(2.0)))
    assert each.load(1, 2).train.inputs.item() == 2.0
    assert each.load(0, 1).train.inputs.ravel().tolist() == [1.0, 2.0]
    with pytest.raises(DataError, match="2 data sets are as many partitions, or one, not 3"):
        each.load(0, 3)
