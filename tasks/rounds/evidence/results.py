"""The result of replaying a round: the same bits, or the first part that differs, and by how much."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch

from roundweave.storage.errors import listed
from roundweave.storage.rounds.commits import UpdateRecord
from roundweave.storage.values.tensors import differences


@dataclass(frozen=True)
class Difference:
    """The first part of a replayed round that differs from the stored one.

    `path` is the path of a tensor, or the name of a field of the record. `partition` is that of the update, None
    for the state. `largest` is the largest absolute difference of two numbers at one place: 0 if only the bits
    differ, inf if only one of the two is finite, None if nothing can be subtracted. `said` explains more.
    """

    path: str
    partition: int | None = None
    largest: float | None = None
    said: str = ""

    def __str__(self) -> str:
        return self.said_with(range(0))

    def said_with(self, names: Sequence[int | str]) -> str:
        """Return the difference as text, with the names of partitions."""
        of = "" if self.partition is None else f" of partition {listed([self.partition], names)}"
        by = "" if self.largest is None else f" by up to {self.largest:.6g}"
        return f"{self.path}{of}{by}" + (f": {self.said}" if self.said else "")


@dataclass(frozen=True)
class RoundResult:
    """The result of replaying a round: all bits are identical if it has neither a `difference` nor a `lacking`.

    `lacking` says what is no longer stored, so that the round could not be replayed. `raised` are the partitions
    whose maps raised in training. They were not mapped again. `names` has the name of each partition.
    """

    round: int
    difference: Difference | None = None
    lacking: str | None = None
    raised: tuple[int, ...] = ()
    names: Sequence[int | str] = range(0)

    @property
    def said(self) -> str:
        """What differs, is lacking, or was not mapped again; empty if there is nothing to say."""
        again = f"partition {listed(self.raised, self.names)} not mapped again, as it had raised"
        said = self.difference.said_with(self.names) if self.difference else again * bool(self.raised)
        return self.lacking or said

    @property
    def status(self) -> str:
        """``bit-identical``, ``differs``, or ``not replayed``."""
        if self.lacking is not None:
            return "not replayed"
        return "bit-identical" if self.difference is None else "differs"

    @property
    def identical(self) -> bool:
        """Whether every update and the state have the committed bits."""
        return self.status == "bit-identical"

    def __str__(self) -> str:
        return f"round {self.round}: {self.status}" + (f", {self.said}" if self.said else "")


def record_difference(partition: int, replayed: UpdateRecord, stored: UpdateRecord | None) -> Difference | None:
    """Return the first field of an update's record that differs, None if none does. Ignores digests."""
    if stored is None:
        return Difference("update", partition, said="it took no part")
    if replayed.raised:
        return Difference("refused", partition, said=f"{replayed.refused} instead of {stored.refused}")
    for word in ("weight", "refused"):
        now, then = getattr(replayed, word), getattr(stored, word)
        if now != then:
            return Difference(word, partition, said=f"{now} instead of {then}")
    return None


def tensor_difference(
    replayed: Mapping[str, torch.Tensor], stored: Mapping[str, torch.Tensor], partition: int | None = None
) -> Difference | None:
    """Return the first tensor that differs, or that only one side has; None if all are equal.

    Both sides have tensors, ``(*shape)`` each, by path.
    """
    for path, largest in differences(stored, replayed):
        said = f"it is only {'stored' if path in stored else 'replayed'}" if largest is None else ""
        said = "only signs of zeros or kinds of NaN" if largest == 0 else said
        return Difference(path, partition, largest, said)
    return None


def difference_as_json(largest: float | None) -> float | str | None:
    """Return a largest difference as a value for JSON, which has no infinity."""
    return "inf" if largest is not None and math.isinf(largest) else largest
