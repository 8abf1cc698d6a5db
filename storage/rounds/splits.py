"""The splits of a run: the partition of each example."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import RoundMissing, StoreDamaged, short, unless_damaged
from roundweave.storage.hierarchy.schema import split_array
from roundweave.storage.hierarchy.zarr_format import (
    NAME,
    missing_chunk,
    read_chunk,
    read_document,
    replace_documents,
    write_chunk,
)
from roundweave.storage.rounds.commits import Commit, SplitRecord
from roundweave.storage.rounds.log import CommitLog
from roundweave.storage.values.digests import tensor_digest

PLAIN, LONGEST = re.compile(r"[^\W\d_]([^,]*[^,\s])?"), 40
"""Matches a name that cannot be taken for a number or for two names; and the most characters of a shown name."""


NAMES = "partition_name"
"""The coordinate, and the column of tables, of partitions' names."""


@functools.lru_cache
def partition_names(names: tuple[str, ...], count: int) -> Sequence[int | str]:
    """Return what each of `count` partitions is called. Recorded `names` are empty if they have none.

    The result is the name. It is number and name if one of the names could be taken for another or for a number.
    It is the number without names, and if the names are the numbers.

    >>> partition_names(("berlin", "paris"), 2), partition_names(("1", "2"), 2), partition_names((), 2)
    (('berlin', 'paris'), ('0 (1)', '1 (2)'), range(0, 2))
    """
    if names in ((), tuple(map(str, range(count)))):
        return range(count)
    shown = tuple(short(name, LONGEST) for name in names)
    if len({*shown}) == len(shown) and all(map(PLAIN.fullmatch, shown)):
        return shown
    return tuple(f"{number} ({name})" for number, name in enumerate(shown))


def named_partitions(names: Sequence[int | str], numbers: Sequence[int]) -> dict[str, Any]:
    """Return the coordinate ``partition`` of numbers, and ``partition_name`` if partitions have names."""
    named = {} if isinstance(names, range) else {NAMES: ("partition", [names[n] for n in numbers])}
    return {"partition": numbers, **named}


class Splits:
    """The stored splits of a run, by number. The commit records have their digests.

    Methods take a committed round by its number, or as its record to save reading it.
    """

    def __init__(self, log: CommitLog) -> None:
        self.log = log
        self.place = log.place

    def write(self, number: int, owner: Callable[[int], np.ndarray]) -> None:
        """Store a split, unless it is stored already and whole.

        `owner` gives the partition of each example under the split of a number, int32 (example,).
        """
        if self._is_stored(number):
            return
        owners = owner(number)
        spec = split_array(number, len(owners))
        # Write the chunk first: an array without its chunk reads as all examples in partition 0.
        write_chunk(self.place, spec, (0,), owners)
        replace_documents(self.place, [spec])

    def numbers(self) -> list[int]:
        """Return the numbers of the stored splits, ascending."""
        return sorted(int(name) for name in self.place.names("partitions") if name.isdecimal())

    def read(self, at: int | Commit) -> np.ndarray:
        """Return the partition of each example in a round, int32 (example,); -1 for held-out and unused ones.

        Raises `RoundMissing` if each partition brought examples of its own, and `StoreDamaged` if the bits differ
        from the committed bits.
        """
        commit = self.log.commit(at)
        split = commit.split
        if split is None:
            raise RoundMissing(f"round {commit.round} of {self.place} has no split: partitions brought their own")
        spec = split_array(split.number, split.examples)
        owners = read_chunk(self.place, spec, (0,))
        if owners is None:
            raise missing_chunk(self.place, spec, (0,), f"round {commit.round} has no {spec.path}")
        if split_record(split.number, owners) != split:
            raise StoreDamaged(f"{self.place}: {spec.path} is not the split of round {commit.round}")
        return owners

    def drop(self, commits: Iterable[Commit]) -> None:
        """Delete the splits that are damaged or unused. `commits` are all commits of the run.

        They are written again when a round needs them.
        """
        used = {commit.split.number: commit for commit in commits if commit.split}
        for number in self.place.names("partitions"):
            commit = used.get(int(number)) if number.isdecimal() else None
            if number != NAME and (commit is None or unless_damaged(self.read, commit) is None):
                self.place.delete(f"partitions/{number}")

    def _is_stored(self, number: int) -> bool:
        try:
            (examples,) = read_document(self.place, f"partitions/{number}")["shape"]
            return read_chunk(self.place, split_array(number, examples), (0,)) is not None
        except (KeyError, ValueError, TypeError):
            return False


def split_record(number: int, owners: np.ndarray) -> SplitRecord:
    """Return a commit's record of a split. `owners` is the partition of each example, int32 (example,)."""
    owners = np.ascontiguousarray(owners)
    return SplitRecord(number, len(owners), tensor_digest(f"partitions/{number}", torch.from_numpy(owners)))
