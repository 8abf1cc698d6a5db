"""What a way of splitting is: a value that deals examples out to partitions."""

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
    """The examples to deal out: their rows, and what a split may know of each, in the same order.

    `rows` int64 (examples,); `labels` integers (examples,), None where targets are no labels; `columns` by name,
    of numbers or texts (examples,).
    """

    rows: Rows
    labels: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def take(self, chosen: np.ndarray) -> Pool:
        """The examples at some places, int64 or bool (examples,)."""
        labels = None if self.labels is None else self.labels[chosen]
        return Pool(self.rows[chosen], labels, {name: column[chosen] for name, column in self.columns.items()})


class Deal(Protocol):
    """A way to split: which rows of a pool each partition gets; each goes to one, and none is left over.

    `random` says that it draws from the generator, so that another draw is another split; `labelled` that it needs
    class labels. `column` is one that it reads, which is then no input of the network, and `partitions` how many
    partitions it deals to; None for any number.
    """

    random: bool = False
    labelled: bool = False
    column: str | None = None

    @property
    def partitions(self) -> int | None:
        return None

    def taking_part(self, pool: Pool, partitions: int) -> Pool:
        """The examples that are used at all, before any are held out; the others belong to no partition."""
        return pool

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """The rows of each partition, in an order that depends on the arguments alone; raises `DataError`."""
        ...


Number = TypeVar("Number", int, float)


def positive(text: str, kind: type[Number], split: str) -> Number:
    """The number above 0 that a split is given; raises `UsageError` for any other text."""
    try:
        number = kind(text)
    except ValueError:
        number = kind(0)
    if not 0 < number < float("inf"):
        wanted = "whole number" if kind is int else "number"
        raise UsageError(f"split {split}:{text}: {text!r} is no {wanted} above 0")
    return number
