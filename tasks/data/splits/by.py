"""Partitions that the data have of themselves: one for each value of a column."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.errors import DataError
from tasks.data.splits.base import Deal, Pool, Rows


@dataclass(frozen=True)
class By(Deal):
    """A partition for each value of a column, in the order of the values."""

    name: str

    @property
    def column(self) -> str:
        """The column that tells partitions apart."""
        return self.name

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """The rows of each value; raises `DataError` where there are more values or fewer than partitions."""
        values = np.unique(pool.columns[self.name])
        if len(values) != partitions:
            raise DataError(
                f"split by {self.name}: there are {len(values)} values and {partitions} partitions; "
                f"use {len(values)} partitions, or largest:{self.name} for those with the most examples"
            )
        return [pool.rows[pool.columns[self.name] == value] for value in values]


@dataclass(frozen=True)
class Largest(By):
    """A partition for each of the values with the most examples, in the order of the values.

    Other examples are left out: neither trained on nor held out, they belong to partition -1. Of two values with
    as many examples the lesser goes before.
    """

    def taking_part(self, pool: Pool, partitions: int) -> Pool:
        """The examples of so many values; raises `DataError` where there are fewer."""
        values, counts = np.unique(pool.columns[self.name], return_counts=True)
        if len(values) < partitions:
            raise DataError(
                f"split largest:{self.name}: there are {len(values)} values and {partitions} partitions; "
                f"use {len(values)} partitions at most"
            )
        most = values[np.argsort(-counts, kind="stable")[:partitions]]
        return pool.take(np.isin(pool.columns[self.name], most))
