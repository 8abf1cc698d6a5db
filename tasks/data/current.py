"""Which partition the user's code is called for: in a map, a transform or a data function."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any

from roundweave.storage.errors import UsageError


@dataclass(frozen=True)
class CurrentPartition:
    """The partition that the user's code is called for.

    `number` is from 0, and `name` is that of its value in a split by a column, or of its data set where each
    partition has one; else its number as a text. `partitions` is how many there are, and `options` are its own.
    `cohort` has the numbers of those that take part in the round, ascending. It has all where there is no such
    round: with a parameter server, and in data functions.
    """

    number: int
    name: str
    partitions: int
    options: Mapping[str, Any] = field(default_factory=dict, hash=False)
    cohort: Sequence[int] = field(default=(), compare=False)


CURRENT: ContextVar[CurrentPartition | None] = ContextVar("partition", default=None)
"""The partition for which this thread calls the user's code; None while it is called for all, or for several."""


@contextmanager
def as_partition(partition: CurrentPartition | None) -> Iterator[None]:
    """Have the user's code called for a partition, or for none, while the context lasts."""
    token = CURRENT.set(partition)
    try:
        yield
    finally:
        CURRENT.reset(token)


def partition() -> CurrentPartition:
    """Tell for which partition a map, a transform or a data function is called.

    Returns:
        A frozen value with `number`, `name`, `partitions` (how many there are), `cohort` (the numbers of those
        that take part in the round) and `options` (a copy of those that ``--partition-options`` gives it).

    Raises:
        UsageError: The code is not called for one partition alone.

    Example:
        >>> def transform(picture):
        ...     return -picture if rw.partition().options.get("negative") else picture
    """
    current = CURRENT.get()
    if current is None:
        raise UsageError(
            "rw.partition() needs code that is called for one partition, and this code is called for several"
        )
    return replace(current, options=copy.deepcopy(current.options))
