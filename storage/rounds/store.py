"""The round store: one zarr v3 hierarchy a run, written chunk by chunk and made true by its commits."""

from __future__ import annotations

import functools
import statistics
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

from storage.errors import ExperimentDiffers, NotARun, PlaceTaken, UsageError
from storage.hierarchy.documents import NAME, create_root, read_document, told_rows
from storage.hierarchy.schema import VERSION, Schema
from storage.hierarchy.soundness import schema_problem
from storage.parsing import numbered
from storage.places.addresses import Where, as_path
from storage.places.base import Place
from storage.places.schemes import place_of
from storage.rounds.commits import Commit, UpdateRecord, check_names
from storage.rounds.log import CommitLog, Link
from storage.rounds.numbers import Numbers
from storage.rounds.splits import Splits
from storage.rounds.tensors import StoredTensors
from storage.values.digests import json_digest, state_digest, tensor_digests, update_digest
from storage.values.state import State, Update


class RoundStore:
    """A stored run: its `log` of commits, the `tensors` and `splits` of its rounds, and copies of their `numbers`.

    `rounds`, the number it has room for, is read when it is opened, where it is not to be more; so is the log's
    `shelf`.
    """

    def __init__(self, where: Where | Place, fsync: bool = False, rounds: int = 0) -> None:
        self.place = place_of(where)
        self.fsync = fsync
        try:
            self.attributes: dict[str, Any] = read_document(self.place)["attributes"]
            version, schema = self.attributes["version"], self.attributes["schema"]
        except (ValueError, KeyError, TypeError) as error:
            raise _not_a_run(self.place) from error
        if version != VERSION:
            raise NotARun(f"{self.place} has store version {version}, this is version {VERSION}")
        self.schema = _sound(self.place, schema)
        self.log = CommitLog(self.place, json_digest(self.attributes), self.schema)
        self.shelf = self.log.look()
        newest = self.shelf.newest or 0
        self.rounds = max(rounds, newest, self._room(newest))
        self.tensors = StoredTensors(self.log, self.schema, self.rounds + 1, fsync)
        self.splits = Splits(self.log, fsync)
        self.numbers = Numbers(self.log, self.schema, self.rounds + 1, fsync)

    def _room(self, newest: int) -> int:
        """How many rounds there is room for: where that cannot be read, for those that are there."""
        # What most of these tell: one may have been changed, or be ahead where an extension was cut short.
        told = [rows for path in ("commits", "committed", "round") if (rows := told_rows(self.place, path))]
        return statistics.mode(told) - 1 if told else newest

    @property
    def address(self) -> str:
        """Where it is, as text."""
        return str(self.place)

    @property
    def path(self) -> Path:
        """Its folder; raises `UsageError` where it is not on a disk of this machine."""
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
    ) -> RoundStore:
        """A new run with its initial state committed, made aside and then put in place at once.

        `carried` are the updates, vectors (element,), with which partitions of another run took along what they
        carry into the first round here; row 0 keeps them.
        Raises `ExperimentDiffers` where something is there already, `UsageError` for names that cannot be kept.
        """
        place = place_of(where)
        if problem := schema_problem(schema):
            raise UsageError(f"the network cannot be kept: {problem}; rename what is called so")
        root = {"version": VERSION, "schema": schema.to_json(), "coordinates": "committed", **attributes}
        try:
            with place.aside() as aside:
                create_root(aside, root)
                store = cls(aside, rounds=rounds)
                store.tensors.describe()
                store.tensors.write_state(initial)
                for partition, update in carried.items():
                    store.tensors.write_update(0, partition, update)
                records = {p: UpdateRecord(update_digest(update), update.weight) for p, update in carried.items()}
                commit = store.describe(initial, "initial", 0)
                commit = replace(commit, updates=records, carry_from=dict.fromkeys(carried, 0))
                store.numbers.rebuild([store.commit(commit)])
                aside.sync()
        except PlaceTaken as error:
            raise ExperimentDiffers(f"{error}; give the new run another name") from error
        place.sync()
        return cls(place, fsync)

    def describe(self, state: State, token: str, epoch: int, digests: Mapping[str, str] | None = None) -> Commit:
        """The commit of a state, vectors (element,), as yet without its updates.

        The `digests` of its tensors may be known already.
        """
        tensors = tensor_digests(state.named(self.schema.layout)) if digests is None else digests
        return Commit(
            round=state.round, token=token, epoch=epoch, state=state_digest(tensors, state.round), tensors=tensors
        )

    def commit(self, commit: Commit, before: Link | None = None) -> Commit:
        """Make a round exist, whose tensors are written; `before` is the sealed record before it, where known.

        Raises `WriterFenced` when another writer was first, `UsageError` for a metric that cannot be kept.
        """
        check_names(commit)
        return self.log.create(commit, self.fsync, before)


def _sound(place: Place, value: Any) -> Schema:
    """The schema that attributes tell; raises `NotARun` for one that no run has."""
    try:
        schema = Schema.from_json(value)
        problem = schema_problem(schema)
    except ValueError as error:
        problem = str(error)
    if problem:
        raise NotARun(f"{place} is no run that Roundweave made: {problem}")
    return schema


def _not_a_run(place: Place) -> NotARun:
    """What to raise where no attributes of a run are read: its records may be there all the same."""
    if not numbered(place.names("commits")):
        return NotARun(f"{place} is not a run of Roundweave; `roundweave runs` lists them")
    what = "damaged" if place.has(NAME) else "missing"
    return NotARun(f"{place}/{NAME}: it is {what}, and tells what the run is; restore the file from a copy")


@functools.lru_cache(maxsize=8)
def open_store(address: str, token: str, fsync: bool) -> RoundStore:
    """The store as it was when the writer of this token began, opened once per process."""
    return RoundStore(address, fsync)
