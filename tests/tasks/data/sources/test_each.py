"""A source of its own for each partition."""

from __future__ import annotations

from dataclasses import dataclass

import pytest
import torch

from storage.errors import DataError
from tasks.data.examples import Dataset, Examples
from tasks.data.sources.table import Each, Source


@dataclass(frozen=True)
class Number(Source):
    """One example, of a number."""

    number: float

    def load(self, partition: int, partitions: int) -> Dataset:
        """The example."""
        return Dataset(Examples(torch.tensor([[self.number]]), torch.zeros(1, dtype=torch.int64)))


def test_each_partition_has_what_its_source_loads() -> None:
    each = Each((Number(1.0), Number(2.0)))
    assert each.load(1, 2).train.inputs.item() == 2.0
    with pytest.raises(DataError, match="2 data sets are as many partitions, not 3"):
        each.load(0, 3)
