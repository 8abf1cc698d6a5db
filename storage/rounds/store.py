"""The store of a run, one zarr v3 hierarchy. Chunks are written first. The commit record makes a round exist."""

from __future__ import annotations

import functools
import statistics
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from roundweave.storage.errors import (
    ExperimentDiffers,
    ForeignPlace,
    NotARun,
    OtherVersion,
    PlaceTaken,
    StoreError,
    UsageError,
    listed,
    nearest,
)
from roundweave.storage.hierarchy.schema import COPIES, ROWS, UNPACKED, VERSION, VERSIONS, Schema
from roundweave.storage.hierarchy.soundness import checked_schema
from roundweave.storage.hierarchy.zarr_format import NAME, described_rows, read_document, root_document
from roundweave.storage.parsing import mistakes_as
from roundweave.storage.places.base import Place, Where, as_path
from roundweave.storage.places.schemes import place_of
from roundweave.storage.rounds.columns import KEY as COLUMNS
from roundweave.storage.rounds.commits import SECTIONS, Commit, Score, UpdateRecord, check_names
from roundweave.storage.rounds.lease import fenced, read_claim
from roundweave.storage.rounds.log import CommitLog, Link, quarantined_rounds
from roundweave.storage.rounds.numbers import show
from roundweave.storage.rounds.packs import recorded
from roundweave.storage.rounds.splits import Splits, partition_names
from roundweave.storage.rounds.tensors import StoredTensors, Supply
from roundweave.storage.values.digests import state_digest, tensor_digests, update_digest
from roundweave.storage.values.hashing import ALGORITHM, bytes_digest, json_digest
from roundweave.storage.values.state import State, Update


class RoundStore:
    """A stored run: its `log` of commits, and the `tensors` and `splits` of its rounds.

    Opening a store reads the attributes and lists the log. `records` are the rounds with a record, whole or not.
    `newest` is the last one whose record is whole, None if there is none. `quarantined` are the rounds of
    quarantined records. `has_sections` tells whether plugins wrote about the run, and `is_old` whether it has an
    earlier store version. `rounds` is the number of rounds that its arrays have room for, or the argument `rounds`
    if that is larger. With `fsync`, everything that is written survives a power loss. Raises `NotARun` if there is
    no run, or if its attributes are damaged, and `StoreDamaged` if the records do not belong to them.
    """

    supply: Supply | None = None

    def __init__(self, where: Where | Place, fsync: bool = False, rounds: int = 0) -> None:
        self._room = rounds
        self._rounds: int | None = None
        self._tensors: StoredTensors | None = None
        self._shown: int | None = None
        self.place = place_of(where, fsync)
        with mistakes_as(lambda error: _not_a_run(self.place), (ValueError, KeyError, TypeError)):
            self.attributes: dict[str, Any] = read_document(self.place)["attributes"]
            version, schema = self.attributes["version"], self.attributes["schema"]
        if version not in VERSIONS:
            advice = "open it with the Roundweave that wrote it, or train its configuration again"
            raise OtherVersion(f"{self.place} has store version {version}, this Roundweave {VERSION}; {advice}")
        self.is_old = version < VERSION
        with mistakes_as(lambda error: NotARun(f"{self.place} is no run that Roundweave made: {error}")):
            self.schema = checked_schema(schema)
        self.log = CommitLog(self.place, json_digest(self.attributes), self.schema)
        names = self.place.names("commits")
        self.has_sections = any(name in SECTIONS for name in names)
        self.records, self.quarantined = self.log.rounds(names), quarantined_rounds(names)
        self.newest = self.log.newest(self.records)
        self.splits = Splits(self.log)

    # Before Python 3.12 one lock of `cached_property` makes all threads wait for the slowest store.

    @property
    def rounds(self) -> int:
        """The number of rounds that the run has room for."""
        if self._rounds is None:
            # The most frequent of three counts: one may be damaged, or ahead after an interrupted extension.
            paths = ("commits", "committed", "round")
            counts = [rows for path in paths if (rows := described_rows(self.place, path))]
            self._rounds = max(self._room, self.newest or 0, statistics.mode(counts) - 1 if counts else 0)
        return self._rounds

    @property
    def tensors(self) -> StoredTensors:
        """The tensors of the rounds. `supply`, if there is one, computes tensors that are not stored."""
        if self._tensors is None:
            self._tensors = StoredTensors(self.log, self.rounds + 1, self.supply)
        return self._tensors

    @property
    def partition_names(self) -> Sequence[int | str]:
        """The name of each partition. Raises `NotARun` if the record has names for some partitions only."""
        names, count = self.recorded_names, self.schema.partitions
        if len(names) not in (0, count):
            raise NotARun(f"{self.place}: its record has names of {len(names)} partitions, not of {count}")
        return partition_names(names, count)

    @property
    def recorded_names(self) -> tuple[str, ...]:
        """The recorded names of the partitions; empty if they have none."""
        return tuple(self.attributes.get("data", {}).get("partition_names", ()))

    def find_partition(self, given: int | str) -> int:
        """Return the number of a partition, given its number or its name.

        Raises `UsageError` for an unknown one.
        """
        names, recorded = self.partition_names, self.recorded_names
        found = [n for n in range(len(names)) if given in (n, str(n), names[n], *recorded[n : n + 1])]
        if len(found) == 1:
            return found[0]
        of = f"it has partitions {listed(range(len(names)), names)}"
        hint = f"give {' or '.join(str(names[n]) for n in found)}" if found else nearest(given, recorded, of)
        raise UsageError(f"{self.place} has {'several partitions' if found else 'no partition'} {given}; {hint}")

    @property
    def address(self) -> str:
        """The address of the run as text."""
        return str(self.place)

    @property
    def path(self) -> Path:
        """The folder of the run. Raises `UsageError` if it is not on a disk of this machine."""
        return as_path(self.address)

    @classmethod
    def create(
        cls,
        where: Where | Place,
        schema: Schema,
        rounds: int,
        attributes: Mapping[str, Any],
        initial: State,
        fsync: bool = False,
        carried: Mapping[int, Update] = MappingProxyType({}),
        scored: Score | None = None,
        columns: bytes = b"",
    ) -> RoundStore:
        """Create a run and commit its initial state as round 0. The whole run appears at once, or not at all.

        `attributes` are recorded besides version and schema. `carried` are updates of another run, with vectors
        (element,), by partition: their carries go into the first round here, and row 0 stores them. `scored` is
        the score of the initial state. `columns` is the record of the examples' columns, if there is one. Raises
        `ExperimentDiffers` if something is there already, and `UsageError` for names that cannot be stored.
        """
        place = place_of(where)
        with mistakes_as(lambda error: UsageError(f"the network cannot be stored: {error}; rename the tensor")):
            checked_schema(schema.to_json())
        kinds = {"version": VERSION, "digest": ALGORITHM, "coordinates": "committed"}
        root = {**kinds, "schema": schema.to_json(), **attributes}
        root["columns"] = bytes_digest(columns) if columns else ""
        taken = mistakes_as(lambda error: ExperimentDiffers(f"{error}; give the new run another name"), PlaceTaken)
        with taken, place.aside() as aside:
            aside.create(NAME, root_document(root))
            if columns:
                aside.create(COLUMNS, columns)
            store = cls(aside, rounds=rounds)
            store.tensors.describe()
            store.tensors.write_state(initial)
            store.tensors.write_updates(0, carried)
            records = {p: UpdateRecord(update_digest(update), update.weight) for p, update in carried.items()}
            commit = store.describe(initial, "initial", 0)
            commit = replace(commit, updates=records, carry_from=dict.fromkeys(carried, 0), score=scored)
            store.commit(commit)
            store.show()
            aside.sync()
        place.sync()
        return cls(place, fsync)

    def describe(self, state: State, token: str, epoch: int, digests: Mapping[str, str] | None = None) -> Commit:
        """Return a commit of a state, vectors (element,), without its updates yet.

        `token` and `epoch` are the writer's. `digests` are those of the state's tensors, if they are known.
        """
        tensors = tensor_digests(state.named(self.schema.layout)) if digests is None else digests
        return Commit(
            round=state.round, token=token, epoch=epoch, state=state_digest(tensors, state.round), tensors=tensors
        )

    def commit(self, commit: Commit, before: Link | None = None) -> Commit:
        """Write the commit record of a round whose tensors are written, which makes the round exist.

        `before` is the sealed record before it, if it is known. Raises `WriterFenced` if another writer was first,
        and `UsageError` for a metric or score that cannot be stored under its name.
        """
        check_names(commit)
        return self.log.create(commit, before)

    def show(self, rounds: Sequence[int] | None = None) -> None:
        """Write the numbers of all rounds, or of these alone, as arrays for plain zarr and xarray."""
        since = None if rounds else self._shown
        if since is None and self.is_old:
            for path in COPIES:
                self.place.delete(path)
        rounds = rounds or self.log.rounds()
        first = (since or 0) // ROWS * ROWS
        show(self.log, [round for round in rounds if round >= first], self.rounds + 1, since is not None)
        self._shown = rounds[-1]


def _not_a_run(place: Place) -> NotARun:
    """Return the error for a place without readable attributes. It says more if there are commit records."""
    if not recorded(place.names("commits")):
        return ForeignPlace(f"{place} is not a run of Roundweave; `roundweave runs` lists them")
    what = "damaged" if place.has(NAME) else "missing"
    return NotARun(f"{place}/{NAME}: it is {what}, and describes the run; restore the file from a copy")


@functools.lru_cache(maxsize=8)
def open_store(address: str, token: str, epoch: int, fsync: bool) -> RoundStore:
    """Return the store at an address, opened once in this process for each writer.

    `token` and `epoch` are those of the writer's claim. Epoch 0 is that of a reader. Raises `NotARun` if the claim
    is missing: a worker's machine may have nothing, or an older copy of the run, at this address.
    """
    place = place_of(address, fsync)
    claim = read_claim(place, epoch) if epoch else None
    if epoch and (claim is None or claim.token != token):
        raise NotARun(f"{address} is not this run on a worker; give a --root (a folder, a bucket) that they share")
    return RoundStore(fenced(place, epoch))


SYNC_SECONDS = 5.0
"""The seconds between two syncs. A power loss costs about the rounds of this time."""


class Syncing:
    """Syncs a store, and tells which rounds are safe: all files of rounds up to `safe` survive a power loss.

    The writer sets `written` to the last commit.
    """

    def __init__(self, store: RoundStore, safe: Commit) -> None:
        self.store = store
        self.written = self.safe = safe

    def sync(self) -> None:
        """Sync everything that was written so far, and pack records that are safe then. Raises `PlaceError`."""
        written = self.written
        self.store.place.flush()
        self.safe = written
        if self.store.attributes["version"] != UNPACKED and self.store.log.pack(written.round):
            self.store.show()

    def repeat(self, done: threading.Event) -> None:
        """Sync every `SYNC_SECONDS` until `done` is set. Raises `PlaceError`."""
        while not done.wait(SYNC_SECONDS):
            self.sync()


@contextmanager
def synced(store: RoundStore, safe: Commit) -> Iterator[Syncing]:
    """Sync a store every few seconds in this context, and once more at the end. Raises `PlaceError`.

    `safe` is the last commit that is synced already. The writer's process syncs the whole file system, which
    includes what workers on its machine wrote. A list of files would have to come from all workers, and one sync
    of thousands of files is faster than a sync of each.
    """
    syncing, done = Syncing(store, safe), threading.Event()
    with ThreadPoolExecutor(1, "sync") as pool:
        repeated = pool.submit(syncing.repeat, done)
        try:
            yield syncing
        finally:
            done.set()
            repeated.result()
            with suppress(StoreError):  # records have what the arrays lack, and `verify` reports it
                store.show()
            syncing.sync()
