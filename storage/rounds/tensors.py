"""The tensors of a run by round: states, updates and matches, one chunk each."""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from math import prod
from typing import Any

import numpy as np
import torch

from roundweave.storage.errors import RoundMissing, RoundPruned, StoreDamaged, listed
from roundweave.storage.hierarchy.schema import ArraySpec
from roundweave.storage.hierarchy.zarr_format import (
    chunk_key,
    missing_chunk,
    read_parts,
    read_stored,
    replace_documents,
    stream_chunk,
    write_chunk,
    write_shard,
)
from roundweave.storage.places.base import refuse_larger_than_memory, together
from roundweave.storage.rounds.commits import Commit, UpdateRecord
from roundweave.storage.rounds.log import CommitLog
from roundweave.storage.rounds.pruned import Pruned, has_updates, read_pruned, there
from roundweave.storage.values.digests import (
    NOTHING_KEPT,
    TensorDigest,
    match_digest,
    match_tensors,
    state_digest,
    tensor_digest,
    update_digest,
    update_vectors,
)
from roundweave.storage.values.state import OBSERVED, Layout, Match, State, Update
from roundweave.storage.values.tensors import Vectors, empty_vectors, from_numpy, to_numpy

LARGE_STATE = 16 << 20
"""From this many bytes on, writing a state to a local disk takes a noticeable time, some 10 to 50 ms."""


@dataclass(frozen=True)
class Contents:
    """The results of a round: the state after it, and updates and matches by partition."""

    state: State
    updates: Mapping[int, Update]
    matches: Mapping[int, Match]


Supply = Callable[[int], Contents]
"""Gives the results of a committed round that are not stored, checked against the round's record."""


class StoredTensors:
    """The stored tensors of a run, in arrays of `rows` rows. The commit records in `log` have their digests.

    Methods take a committed round by its number, or as its record to save reading it. `supply`, if there is one,
    computes what is not stored. `state_written` is when a state was written last, by the monotonic clock.
    """

    def __init__(self, log: CommitLog, rows: int, supply: Supply | None = None) -> None:
        self.supply = supply
        self.state_written = time.monotonic()
        self.log = log
        self.place = log.place
        self.schema = log.schema
        self.arrays = log.schema.tensors(rows)

    def describe(self) -> None:
        """Write the documents of the arrays that are missing, damaged, or have another number of rows."""
        replace_documents(self.place, self.arrays.values())

    def write_state(self, state: State) -> None:
        """Write a state, vectors (element,), to its row. Frozen parameters are written with round 0 only."""

        def write(named: tuple[str, torch.Tensor]) -> None:
            path, tensor = named
            if not path.startswith("frozen/"):
                write_chunk(self.place, self.arrays[path], (state.round,), to_numpy(tensor))
            elif state.round == 0:
                write_chunk(self.place, self.arrays[path], (), to_numpy(tensor))

        together(self.place, write, state.named(self.schema.layout).items())
        self.state_written = time.monotonic()

    def stream(
        self,
        path: str,
        index: tuple[int, ...],
        shape: Sequence[int],
        arrays: Iterable[np.ndarray],
        stored: bool = True,
    ) -> str:
        """Return the digest of a tensor of this shape whose elements come in parts. Write it, too, if `stored`."""
        digest = TensorDigest(path, self.arrays[path].dtype, shape)
        digested = digest.taking(arrays)
        if stored:
            stream_chunk(self.place, self.arrays[path], index, digested)
        for _ in digested:
            pass
        return digest.hexdigest()

    def read_state(self, at: int | Commit) -> State:
        """Return a committed state, with vectors (element,) by dtype in the order of the layout.

        Raises `RoundMissing` for an unknown round, `RoundPruned` if its state is not stored, and `StoreDamaged` if
        the bits differ from the committed bits.
        """
        commit = self.commit(at)
        if given := self._supplied(commit):
            return given.state
        return self.read_state_by(
            commit, self.schema.layout, lambda commit, path, into: into.copy_(self.read_tensor(commit, path))
        )

    def read_state_by(
        self, at: int | Commit, layout: Layout, read: Callable[[Commit, str, torch.Tensor], Any]
    ) -> State:
        """Return a committed state in another layout, such as that of a rank which holds parts of the tensors.

        `read` is called with the commit, the path of a tensor, and the tensor to fill, in the shape that `layout`
        gives. Raises as `read_state` does.
        """
        commit = self.commit(at)
        refuse_larger_than_memory(self.schema.stored_bytes(1, 0), f"a state of {self.place}")
        params, buffers, frozen = map(empty_vectors, (layout.params, layout.buffers, layout.frozen))
        memory = {slot: empty_vectors(layout.params) for slot in self.schema.memory}
        state = State(params, buffers, frozen, memory, commit.round)
        together(self.place, lambda named: read(commit, *named), state.named(layout).items())
        return state

    def commit(self, at: int | Commit) -> Commit:
        """Return the record of a round. Raises `RoundMissing` and `StoreDamaged`."""
        commit = self.log.commit(at)
        digests = {path: commit.tensors[path] for path in self.schema.state(1)}
        if state_digest(digests, commit.round) != commit.state:
            raise StoreDamaged(f"{self.place}: the commit record of round {commit.round} contradicts itself")
        return commit

    def read_tensor(self, commit: Commit, path: str) -> torch.Tensor:
        """Return one tensor of a committed state, of its own shape. Raises `RoundPruned` and `StoreDamaged`."""
        if not path.startswith("frozen/") and (given := self._supplied(commit)):
            return given.state.named(self.schema.layout)[path]
        spec, index = self.arrays[path], self._index(commit, path)
        array = self.read_chunk(spec, index, f"round {commit.round} has no {path}")
        tensor = from_numpy(array[0] if index else array, spec.dtype)
        self._check(commit, path, tensor_digest(path, tensor))
        return tensor

    def read_rows(self, commit: Commit, path: str, rows: int) -> Iterator[torch.Tensor]:
        """Yield one tensor of a committed state in parts of `rows` along its first axis, (row, …).

        Raises `RoundPruned`, and `StoreDamaged` after the last part if the bits differ from the committed bits.
        """
        spec, index = self.arrays[path], self._index(commit, path)
        if not self.place.has(chunk_key(spec, index)):
            self.read_tensor(commit, path)  # raises the error with the reason
        shape = spec.shape[1:] if index else spec.shape
        digest = TensorDigest(path, spec.dtype, shape)
        for part in read_parts(self.place, spec, index, rows * prod(shape[1:])):
            digest.update(part)
            yield from_numpy(part.reshape(-1, *shape[1:]), spec.dtype)
        self._check(commit, path, digest.hexdigest())

    def _index(self, commit: Commit, path: str) -> tuple[int, ...]:
        """Return the index of a tensor's chunk in a committed state.

        Raises `RoundPruned` if it was never stored.
        """
        frozen = path.startswith("frozen/")
        if not (frozen or commit.stored):
            raise self._no_state(commit.round, self.pruned(), "was not stored, as the run keeps its updates")
        return () if frozen else (commit.round,)

    def _check(self, commit: Commit, path: str, digest: str) -> None:
        if digest != commit.tensors.get(path):
            raise StoreDamaged(
                f"{self.place}: {path} of round {commit.round} is not what was committed; restore it from a copy"
            )

    def write_updates(self, round: int, updates: Mapping[int, Update]) -> None:
        """Write updates of a round by partition, vectors (element,), as the whole content of their files."""
        self._write_files(round, {partition: update_vectors(update) for partition, update in updates.items()})

    def drop_updates(self, round: int) -> None:
        """Delete what a killed writer has left of the updates of a round, unless the round is committed."""
        for spec in self.arrays.values() if not self.log.has(round) else ():
            if spec.over_rounds and spec.by_partition:
                self.place.delete(f"{spec.path}/c/{round}")

    def read_update(self, at: int | Commit, partition: int) -> Update:
        """Return the update of one partition in a committed round, vectors (element,).

        The vectors are empty if the record says that the update has none. Raises `RoundMissing` if the partition
        took no part, `RoundPruned`, and `StoreDamaged` if the bits differ from the committed bits.
        """
        commit = self.log.commit(at)
        record = commit.updates.get(partition)
        if record is None:
            raise RoundMissing(f"partition {partition} took no part in round {commit.round} of {self.place}")
        if record.digest == NOTHING_KEPT:
            return Update({}, weight=record.weight, metrics=record.metrics)
        if given := self._supplied(commit, partition):
            return given.updates[partition]
        update = Update(
            direction=self._vectors("updates", commit.round, partition),
            buffers=self._vectors("updates/buffers", commit.round, partition),
            extras={
                name: self._vectors(f"updates/extras/{name}", commit.round, partition)
                for name in self.schema.extras
            },
            carry=self._carry(commit.round, partition),
            observed=self._vectors(OBSERVED, commit.round, partition) if self.schema.observed else {},
            weight=record.weight,
            metrics=record.metrics,
        )
        if update_digest(update) != record.digest:
            raise StoreDamaged(
                f"{self.place}: the update of partition {partition} in round {commit.round} is another one"
            )
        return update

    def read_carry(self, round: int, partition: int) -> dict[str, Vectors]:
        """Return the carry of a partition after a round, (element,) by slot and dtype. Verifies checksums only."""
        try:
            return self._carry(round, partition)
        except RoundPruned:
            if self.supply is None:
                raise
            return dict(self.supply(round).updates[partition].carry)

    def _carry(self, round: int, partition: int) -> dict[str, Vectors]:
        return {slot: self._vectors(f"carry/{slot}", round, partition) for slot in self.schema.carry}

    def _vectors(self, group: str, round: int, partition: int) -> Vectors:
        vectors = {}
        for path, spec in self.arrays.items():
            if path.rpartition("/")[0] == group:
                array = self._read_vector(spec, round, partition)
                vectors[spec.dtype] = from_numpy(array.reshape(-1), spec.dtype)
        return vectors

    def write_matches(self, round: int, matches: Mapping[int, Match]) -> None:
        """Write the matches of a round's units, by partition, as the whole content of their files.

        Matches are (unit,) or (unit, unit) by unit group.
        """
        self._write_files(round, {partition: match_tensors(match) for partition, match in matches.items()})

    def read_match(self, at: int | Commit, partition: int) -> Match:
        """Return the match of one partition's units in a round: (unit,) or (unit, unit) by unit group.

        Raises `RoundMissing` if the units were not matched, `RoundPruned`, and `StoreDamaged` if the bits differ
        from the committed bits.
        """
        commit = self.log.commit(at)
        record = commit.updates.get(partition, UpdateRecord("", 0))
        if record.match is None:
            raise RoundMissing(f"round {commit.round} of {self.place} matched no units of partition {partition}")
        if given := self._supplied(commit, partition):
            return given.matches[partition]
        kinds: dict[str, dict[str, torch.Tensor]] = {"permutations": {}, "similarities": {}}
        for path in self.schema.matching(1):
            spec, (kind, _, group) = self.arrays[path], path.partition("/")
            kinds[kind][group] = from_numpy(self._read_vector(spec, commit.round, partition)[0, 0], spec.dtype)
        match = Match(*kinds.values())
        if match_digest(match) != record.match:
            raise StoreDamaged(
                f"{self.place}: the match of partition {partition} in round {commit.round} is another one"
            )
        return match

    def _supplied(self, commit: Commit, partition: int | None = None) -> Contents | None:
        """Return the results of a round if its state, or a partition's update, is not stored, and can be computed.

        Without a supply it raises `RoundPruned` for an update that was never stored.
        """
        if self.supply is None:
            if partition is None or commit.has_update(partition):
                return None
            raise self._no_updates(commit.round, self.pruned(), "were not stored, as the run does not keep them")
        round, pruned = commit.round, self.pruned()
        if partition is None:
            stored = commit.stored and pruned.has_state(round)
        else:
            stored = commit.has_update(partition) and pruned.has_update(round, partition)
        return None if stored else self.supply(round)

    def read_chunk(self, spec: ArraySpec, index: tuple[int, ...], whose: str) -> np.ndarray:
        """Return a chunk that a record names. `whose` says in a message what lacks the chunk.

        Raises `RoundPruned` if it was pruned, and `StoreDamaged` if it is missing or its checksum is wrong.
        """
        array = read_stored(self.place, spec, index)
        if array is None:
            pruned = self.pruned()
            if spec.over_rounds and not pruned.has_chunk(spec, index):
                absent = self._no_updates if spec.by_partition else self._no_state
                raise absent(index[0], pruned, "went when it was pruned")
            raise missing_chunk(self.place, spec, index, whose)
        return array

    def pruned(self) -> Pruned:
        """Return what was pruned, read from the store now. Raises `StoreDamaged` if that record is damaged."""
        return read_pruned(self.log)

    def has_row(self, round: int) -> bool:
        """Tell whether any update of a round was written, committed or not."""
        return any(self.place.names(f"{path}/c/{round}") for path in self.schema.vectors(1))

    @property
    def slow(self) -> bool:
        """Whether writing a round takes so long that the next round should be computed in the meantime."""
        return self.place.at_once > 1 or self.schema.state_bytes >= LARGE_STATE

    def kept_bytes(self, last: int, pruned: Pruned, asked: int = 0) -> int:
        """Return the unpruned bytes of rounds 0 to `last`, each with the updates of `asked` partitions.

        0 for all.
        """
        gone = pruned.until(last)
        updates = (last - len(gone.updates)) * (asked or self.schema.partitions) + len(gone.carried)
        return self.schema.stored_bytes(last + 1 - len(gone.states), updates)

    def _read_vector(self, spec: ArraySpec, round: int, partition: int) -> np.ndarray:
        return self.read_chunk(
            spec, (round, partition), f"round {round} has no {spec.path} of partition {partition}"
        )

    def _no_updates(self, round: int, pruned: Pruned, why: str) -> RoundPruned:
        """Return the error for the absent updates of a round, which names the rounds with all updates."""
        rounds = [each for each in self.log.rounds() if each and has_updates(self.log, pruned, each)]
        others = f"there are those of rounds {listed(rounds)}" if rounds else "there are those of no round"
        return RoundPruned(f"the updates of round {round} of {self.place} {why}; {others}")

    def _no_state(self, round: int, pruned: Pruned, why: str) -> RoundPruned:
        """Return the error for the absent state of a round, which names the nearest rounds with a state."""
        sides = (range(round - 1, -1, -1), range(round + 1, self.log.last() + 1))
        nearest = [n for side in sides for n in islice((n for n in side if there(self.log, pruned, n)), 1)]
        others = f"the nearest are those of rounds {listed(sorted(nearest))}"
        return RoundPruned(f"the state of round {round} of {self.place} {why}; {others}")

    def _write_files(self, round: int, given: Mapping[int, Mapping[str, torch.Tensor]]) -> None:
        """Write tensors by partition and path."""
        files: dict[tuple[str, int], dict[int, np.ndarray]] = defaultdict(dict)
        for partition, tensors in given.items():
            for path, tensor in tensors.items():
                files[path, partition // self.schema.shard][partition] = to_numpy(tensor)
        together(self.place, lambda file: write_shard(self.place, self.arrays[file[0]], round, files[file]), files)
