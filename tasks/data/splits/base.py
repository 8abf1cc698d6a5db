"""The interface of deals, which are ways to split examples into partitions."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Protocol, TypeVar

import numpy as np

from storage.errors import UsageError

Rows = np.ndarray
"""Indices of examples, int64 (examples,)."""


@dataclass(frozen=True)
class Pool:
    """The examples to split: their rows and, in the same order, the labels and columns that a split may use.

    `rows` are int64 (examples,). `labels` are integers (examples,), or None if the targets are no labels.
    `columns` have numbers or texts (examples,) by name.
    """

    rows: Rows
    labels: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def take(self, chosen: np.ndarray) -> Pool:
        """The examples at the chosen places, given as int64 indices or a bool mask (examples,)."""
        labels = None if self.labels is None else self.labels[chosen]
        return Pool(self.rows[chosen], labels, {name: column[chosen] for name, column in self.columns.items()})


class Deal(Protocol):
    """A way to split a pool: each row goes to exactly one partition.

    `random` says that it uses the random generator, and `labelled` that it needs class labels. `column` is a
    column that it reads, which is then no input of the network. `partitions` is the number of partitions that it
    is for, or None for any number.
    """

    random: bool = False
    labelled: bool = False
    column: str | None = None

    @property
    def partitions(self) -> int | None:
        return None

    def taking_part(self, pool: Pool, partitions: int) -> Pool:
        """The examples to use, before any are held out; the others belong to no partition."""
        return pool

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """The rows of each partition, which depend only on the arguments; raises `DataError`."""
        ...


Number = TypeVar("Number", int, float)


def positive(text: str, kind: type[Number], split: str) -> Number:
    """Parse a split's argument as a number above 0; raises `UsageError` for any other text."""
    try:
        number = kind(text)
    except ValueError:
        number = kind(0)
    if not 0 < number < float("inf"):
        wanted = "whole number" if kind is int else "number"
        raise UsageError(f"split {split}:{text}: {text!r} is no {wanted} above 0")
    return number
