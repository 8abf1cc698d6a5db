"""Which example went where: the splits of a run, a small array each, verified when read."""

from __future__ import annotations

from collections.abc import Callable, Iterable

import numpy as np
import torch

from storage.errors import RoundMissing, StoreDamaged
from storage.hierarchy.chunks import missing_chunk, read_chunk, write_chunk
from storage.hierarchy.documents import NAME, read_document, replace_documents
from storage.hierarchy.schema import split_array
from storage.rounds.commits import Commit, SplitRecord
from storage.rounds.log import CommitLog
from storage.values.digests import tensor_digest


class Splits:
    """The splits of a run by number; its log says where they lie, its commits what each must be.

    Where a method takes a committed round, its record will do as well, and is then not read again.
    """

    def __init__(self, log: CommitLog, fsync: bool = False) -> None:
        self.log = log
        self.place = log.place
        self.fsync = fsync

    def write(self, number: int, owner: Callable[[int], np.ndarray]) -> None:
        """Keep which partition each example went to, int32 (examples,), unless it is kept already and whole."""
        if self._is_kept(number):
            return
        owners = owner(number)
        spec = split_array(number, len(owners))
        # The chunk comes first: an array without it would say that all examples are in partition 0.
        write_chunk(self.place, spec, (0,), owners, self.fsync)
        replace_documents(self.place, [spec], self.fsync)

    def numbers(self) -> list[int]:
        """The numbers of the splits that are kept, ascending."""
        return sorted(int(name) for name in self.place.names("partitions") if name.isdecimal())

    def read(self, at: int | Commit) -> np.ndarray:
        """The partition of each example in a round, int32 (examples,); -1 for those held out or left out.

        Raises `RoundMissing` where none were dealt out, `StoreDamaged` where the bits are not those committed.
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
        """Delete the splits that these commits, which are all, do not tell of as they are, to be written anew."""
        told = {commit.split.number: commit for commit in commits if commit.split}
        for number in self.place.names("partitions"):
            commit = told.get(int(number)) if number.isdecimal() else None
            if number != NAME and not (commit and self._is_whole(commit)):
                self.place.delete(f"partitions/{number}")

    def _is_whole(self, commit: Commit) -> bool:
        try:
            return self.read(commit) is not None
        except StoreDamaged:
            return False

    def _is_kept(self, number: int) -> bool:
        try:
            (examples,) = read_document(self.place, f"partitions/{number}")["shape"]
            return read_chunk(self.place, split_array(number, examples), (0,)) is not None
        except (KeyError, ValueError, TypeError):
            return False


def split_record(number: int, owners: np.ndarray) -> SplitRecord:
    """What a commit says of a split, int32 (examples,)."""
    owners = np.ascontiguousarray(owners)
    return SplitRecord(number, len(owners), tensor_digest(f"partitions/{number}", torch.from_numpy(owners)))
