"""The splits of a run: which example is in which partition."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from roundweave.storage.errors import RoundMissing, StoreDamaged, unless_damaged
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


class Splits:
    """The stored splits of a run, by number. The commit records have their digests.

    Methods take a committed round by its number or as its record, which is then not read again.
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
        # The chunk is written first: an array without it would read as all examples being in partition 0.
        write_chunk(self.place, spec, (0,), owners)
        replace_documents(self.place, [spec])

    def numbers(self) -> list[int]:
        """The numbers of the stored splits, ascending."""
        return sorted(int(name) for name in self.place.names("partitions") if name.isdecimal())

    def read(self, at: int | Commit) -> np.ndarray:
        """The partition of each example in a round, int32 (example,); -1 for those held out or left out.

        Raises `RoundMissing` where each partition brought examples of its own, and `StoreDamaged` where the bits
        are not those that were committed.
        """
        commit = self.log.commit(at)
        split = commit.split
        if split is None:
            raise RoundMissing(f"round {commit.round} of {self.place} has no split: nothing was dealt out")
        spec = split_array(split.number, split.examples)
        owners = read_chunk(self.place, spec, (0,))
        if owners is None:
            raise missing_chunk(self.place, spec, (0,), f"round {commit.round} has no {spec.path}")
        if split_record(split.number, owners) != split:
            raise StoreDamaged(f"{self.place}: {spec.path} is not the split of round {commit.round}")
        return owners

    def drop(self, commits: Iterable[Commit]) -> None:
        """Delete the splits that are damaged or that none of `commits`, all commits of the run, uses.

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
    """What a commit records of a split; `owners` is the partition of each example, int32 (example,)."""
    owners = np.ascontiguousarray(owners)
    return SplitRecord(number, len(owners), tensor_digest(f"partitions/{number}", torch.from_numpy(owners)))
