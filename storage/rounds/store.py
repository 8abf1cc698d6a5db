"""The round store: one zarr v3 hierarchy a run, written chunk by chunk and made true by its commits."""

from __future__ import annotations

import functools
import json
import secrets
import shutil
from collections.abc import Callable, Mapping
from math import prod
from pathlib import Path
from typing import Any

import numpy as np
import zarr
from zarr.core.group import GroupMetadata
from zarr.core.metadata import ArrayV3Metadata

from storage.errors import ExperimentDiffers, NotARun, RoundMissing, StoreDamaged
from storage.rounds.chunks import read_chunk, write_chunk
from storage.rounds.commits import PARTIAL, Commit, CommitLog
from storage.rounds.history import empty_chunk, history_rows
from storage.rounds.schema import METRIC_ROWS, VERSION, ArraySpec, Schema, split_array
from storage.values.digests import (
    match_digest,
    match_tensors,
    state_digest,
    tensor_digests,
    update_digest,
    update_groups,
)
from storage.values.state import Match, State, Update
from storage.values.tensors import Vectors, from_numpy, pack, to_numpy


class RoundStore:
    """A stored run. `rounds`, the number it has room for, is read when it is opened."""

    def __init__(self, path: Path | str, fsync: bool = False) -> None:
        self.path = Path(path)
        self.fsync = fsync
        self.log = CommitLog(self.path / "commits")
        try:
            self.attributes: dict[str, Any] = _json(self.path)["attributes"]
            self.rounds = _rounds(self.path)
            self.schema = Schema.from_json(self.attributes["schema"])
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            raise NotARun(f"{self.path} is not a run of Roundweave; `roundweave runs` lists them") from error
        if self.attributes["version"] != VERSION:
            raise NotARun(f"{self.path} has store version {self.attributes['version']}, this is version {VERSION}")
        self.arrays = self.schema.arrays(self.rounds + 1)

    @classmethod
    def create(
        cls, path: Path, schema: Schema, rounds: int, attributes: Mapping[str, Any], initial: State
    ) -> RoundStore:
        """A new run with its initial state committed, made aside and then put in place at once."""
        partial = path.with_name(f"{path.name}.{secrets.token_hex(4)}{PARTIAL}")
        partial.parent.mkdir(parents=True, exist_ok=True)
        root = {"version": VERSION, "schema": schema.to_json(), "coordinates": "committed", **attributes}
        try:
            _create_nodes(partial, root, list(schema.arrays(rounds + 1).values()))
            store = cls(partial)
            store._rebuild_history(-1)
            store.write_state(initial)
            store.commit(store.describe(initial, "initial", 0))
            partial.rename(path)
        except OSError as error:
            if not path.exists():
                raise
            raise ExperimentDiffers(f"{path} exists already; give the new run another name") from error
        finally:
            shutil.rmtree(partial, ignore_errors=True)
        return cls(path)

    def extend(self, rounds: int) -> RoundStore:
        """The store with room for so many rounds; it never shrinks."""
        if rounds <= self.rounds:
            return self
        group = zarr.open_group(self.path, mode="r+", zarr_format=3, use_consolidated=False)
        # `commits` tells how many rounds there are, so it comes last: an extension cut short is done again.
        for path, spec in sorted(self.schema.arrays(rounds + 1).items(), key=lambda item: item[0] == "commits"):
            array = group[path]
            if isinstance(array, zarr.Array) and array.shape != spec.shape:
                array.resize(spec.shape)
        store = RoundStore(self.path, self.fsync)
        store._rebuild_history(self.log.rounds()[-1])
        return store

    def refreshed(self) -> RoundStore:
        """This store, opened again where it has been extended since."""
        return self if _rounds(self.path) == self.rounds else RoundStore(self.path, self.fsync)

    def write_state(self, state: State) -> None:
        """Write the state's row; frozen parameters with the initial state only."""
        for path, tensor in state.named(self.schema.layout).items():
            if not path.startswith("frozen/"):
                self._write(self.arrays[path], (state.round,), to_numpy(tensor))
            elif state.round == 0:
                self._write(self.arrays[path], (), to_numpy(tensor))

    def read_state(self, round: int, verify: bool = True) -> State:
        """A committed state; raises `RoundMissing`, and `StoreDamaged` where the bits are not those committed."""
        commit = self.log.read(round)
        tensors = {}
        for path, spec in self.schema.state(self.rounds + 1).items():
            frozen = path.startswith("frozen/")
            array = read_chunk(self.path, spec, () if frozen else (round,))
            if array is None:
                raise StoreDamaged(f"{self.path}: round {round} has no {path}")
            tensors[path] = from_numpy(array if frozen else array[0], spec.dtype)
        if verify:
            self._verify(commit, tensors)
        layout = self.schema.layout

        def vectors(group: str, specs: Any) -> Vectors:
            return pack(specs, {spec.name: tensors[f"{group}/{spec.name}"] for spec in specs})

        return State(
            params=vectors("params", layout.params),
            buffers=vectors("buffers", layout.buffers),
            frozen=vectors("frozen", layout.frozen),
            memory={slot: vectors(f"memory/{slot}", layout.params) for slot in self.schema.memory},
            round=round,
        )

    def _verify(self, commit: Commit, tensors: Mapping[str, Any]) -> None:
        found = tensor_digests(tensors)
        for path, digest in found.items():
            if commit.tensors.get(path) != digest:
                raise StoreDamaged(f"{self.path}: {path} of round {commit.round} is not what was committed")
        if state_digest(found, commit.round) != commit.state:
            raise StoreDamaged(f"{self.path}: the commit record of round {commit.round} contradicts itself")

    def write_update(self, round: int, partition: int, update: Update) -> None:
        """Write one partition's vectors."""
        for group, vectors in update_groups(update).items():
            for dtype, vector in vectors.items():
                self._write(self.arrays[f"{group}/{dtype}"], (round, partition), to_numpy(vector))

    def read_update(self, round: int, partition: int) -> Update:
        """One partition's update of a committed round; raises `RoundMissing` where it took no part."""
        record = self.log.read(round).updates.get(partition)
        if record is None:
            raise RoundMissing(f"partition {partition} took no part in round {round} of {self.path}")
        update = Update(
            direction=self._vectors("updates", round, partition),
            buffers=self._vectors("updates/buffers", round, partition),
            extras={
                name: self._vectors(f"updates/extras/{name}", round, partition) for name in self.schema.extras
            },
            carry=self.read_carry(round, partition),
            weight=record.weight,
            metrics=record.metrics,
        )
        if update_digest(update) != record.digest:
            raise StoreDamaged(f"{self.path}: the update of partition {partition} in round {round} is another one")
        return update

    def read_carry(self, round: int, partition: int) -> dict[str, Vectors]:
        """What the partition carried away from a round, by slot."""
        return {slot: self._vectors(f"carry/{slot}", round, partition) for slot in self.schema.carry}

    def _vectors(self, group: str, round: int, partition: int) -> Vectors:
        vectors = {}
        for path, spec in self.arrays.items():
            if path.rpartition("/")[0] == group:
                array = read_chunk(self.path, spec, (round, partition))
                if array is None:
                    raise StoreDamaged(f"{self.path}: round {round} has no {path} of partition {partition}")
                vectors[spec.dtype] = from_numpy(array.reshape(-1), spec.dtype)
        return vectors

    def write_match(self, round: int, partition: int, match: Match) -> None:
        """Write how one partition's units were matched."""
        for path, tensor in match_tensors(match).items():
            self._write(self.arrays[path], (round, partition), to_numpy(tensor))

    def read_match(self, round: int, partition: int) -> Match:
        """How a partition's units were matched in a round; raises `RoundMissing` where they were not."""
        record = self.log.read(round).updates.get(partition)
        if record is None or record.match is None:
            raise RoundMissing(f"round {round} of {self.path} matched no units of partition {partition}")
        found = {}
        for path, spec in self.schema.matching(self.rounds + 1).items():
            array = read_chunk(self.path, spec, (round, partition))
            if array is None:
                raise StoreDamaged(f"{self.path}: round {round} has no {path} of partition {partition}")
            found[path] = from_numpy(array[0, 0], spec.dtype)
        names = [spec.name for spec in self.schema.matches]
        match = Match(
            {n: found[f"permutations/{n}"] for n in names}, {n: found[f"similarities/{n}"] for n in names}
        )
        if match_digest(match) != record.match:
            raise StoreDamaged(f"{self.path}: the match of partition {partition} in round {round} is another one")
        return match

    def write_split(self, number: int, owner: Callable[[int], np.ndarray]) -> None:
        """Keep which partition each example went to, int32 (examples,), unless it is kept already."""
        place = self.path / "partitions" / str(number)
        if (place / "c").exists():
            return
        owners = owner(number)
        spec = split_array(number, len(owners))
        if not place.exists():
            _create_nodes(self.path, None, [spec])
        self._write(spec, (0,), owners)

    def describe(self, state: State, token: str, epoch: int) -> Commit:
        """The commit of a state, as yet without its updates."""
        tensors = tensor_digests(state.named(self.schema.layout))
        return Commit(
            round=state.round, token=token, epoch=epoch, state=state_digest(tensors, state.round), tensors=tensors
        )

    def commit(self, commit: Commit) -> Commit:
        """Make a round exist, whose tensors are written; raises `WriterFenced` when another writer was first."""
        commit = self.log.create(commit, self.fsync)
        for path, row in history_rows(commit, self.schema.partitions).items():
            spec, index = self.arrays[path], (commit.round // METRIC_ROWS,)
            chunk = read_chunk(self.path, spec, index)
            chunk = empty_chunk(spec) if chunk is None else chunk
            chunk[commit.round % METRIC_ROWS] = row
            self._write(spec, index, chunk)
        return commit

    def read_metric(self, name: str) -> np.ndarray:
        """A metric of all rounds, (round,) or (round, partition); NaN where there is none."""
        spec = self.arrays[f"metrics/{name}"]
        chunks = [read_chunk(self.path, spec, (i,)) for i in range(-(-spec.shape[0] // METRIC_ROWS))]
        empty = np.full(spec.chunks, np.nan)
        return np.concatenate([empty if chunk is None else chunk for chunk in chunks])[: spec.shape[0]]

    def has_row(self, round: int) -> bool:
        """Whether anything of a round was written, committed or not."""
        vectors = self.schema.vectors(self.rounds + 1)
        return any((self.path / path / "c" / str(round)).exists() for path in vectors)

    def row_bytes(self) -> int:
        """Bytes of a round's tensors."""
        arrays = self.schema.state(1) | self.schema.vectors(1)
        return sum(prod(spec.shape) * np.dtype(spec.stored).itemsize for spec in arrays.values())

    def recover(self) -> tuple[int, list[int]]:
        """The newest round that is whole, and the later ones that were set aside because they are not.

        Only the holder of the lease may call this: it deletes what a killed writer left half-written, and makes
        the history anew from the commits.
        """
        for partial in self.path.rglob(f"*{PARTIAL}"):
            if partial.is_file():
                partial.unlink(missing_ok=True)
        for round in reversed(self.log.rounds()):
            try:
                self.read_state(round)
                for partition, source in self.log.read(round).carry_from.items():
                    self.read_update(source, partition)
            except StoreDamaged:
                continue
            later = self.log.set_aside(round)
            self._rebuild_history(round)
            return round, later
        raise StoreDamaged(f"{self.path}: no round is whole, not even the initial state; start a new run")

    def _rebuild_history(self, last: int) -> None:
        """Write the coordinates and metrics of rounds up to `last` from their commits."""
        rows = [history_rows(self.log.read(round), self.schema.partitions) for round in range(last + 1)]
        for path, spec in self.schema.history(self.rounds + 1).items():
            for start in range(0, self.rounds + 1, METRIC_ROWS):
                chunk = empty_chunk(spec)
                if path == "round":
                    chunk[:] = np.arange(start, start + METRIC_ROWS)
                elif path != "commits":
                    known = rows[start : start + METRIC_ROWS]
                    chunk[: len(known)] = [row[path] for row in known] or chunk[:0]
                self._write(spec, (start // METRIC_ROWS,), chunk)

    def _write(self, spec: ArraySpec, index: tuple[int, ...], array: np.ndarray) -> None:
        write_chunk(self.path, spec, index, array, self.fsync)


@functools.lru_cache(maxsize=8)
def open_store(path: str, token: str, fsync: bool) -> RoundStore:
    """The store as it was when the writer of this token began, opened once per process."""
    return RoundStore(path, fsync)


def _json(folder: Path) -> dict[str, Any]:
    value: dict[str, Any] = json.loads((folder / "zarr.json").read_text(encoding="utf-8"))
    return value


def _rounds(path: Path) -> int:
    rows: int = _json(path / "commits")["shape"][0]
    return rows - 1


def _create_nodes(path: Path, attributes: Mapping[str, Any] | None, specs: list[ArraySpec]) -> None:
    nodes: dict[str, Any] = {spec.path: ArrayV3Metadata.from_dict(spec.metadata()) for spec in specs}
    if attributes is not None:
        nodes[""] = GroupMetadata(zarr_format=3, attributes=dict(attributes))
    for _ in zarr.create_hierarchy(store=zarr.storage.LocalStore(path), nodes=nodes):
        pass
