"""The run that is being verified, with its files and records as listed at the start, and what was found so far."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from roundweave.storage.errors import PlaceError, RoundweaveError, StoreDamaged, unless_damaged
from roundweave.storage.hierarchy.schema import ArraySpec, Schema
from roundweave.storage.hierarchy.zarr_format import chunk_key, partitions_in
from roundweave.storage.places.base import Place
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.log import Link
from roundweave.storage.rounds.numbers import shown_rounds
from roundweave.storage.rounds.pruned import Pruned, read_pruned
from roundweave.storage.rounds.store import RoundStore


@dataclass(frozen=True)
class Finding:
    """Something wrong with a file of a run: the file's `path` in the run, and `what` is wrong."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass
class Audit:
    """A run as it is when verifying begins, and the results so far.

    `rounds` are those with a record, whole or not. `links` and `commits` are the whole records by round. `sizes`
    are the bytes of all files by key. `shown` are the rounds of which the array `committed` tells; all where that
    is damaged. `pruned` is None if the record of it is damaged. `keys` are the files that belong to the run,
    `findings` what is wrong, and `notes` what is merely unfinished.
    """

    store: RoundStore
    sizes: Mapping[str, int]
    rounds: list[int]
    links: Mapping[int, Link]
    commits: Mapping[int, Commit]
    shown: set[int]
    pruned: Pruned | None
    keys: set[str] = field(default_factory=set)
    findings: list[Finding] = field(default_factory=list)
    notes: list[Finding] = field(default_factory=list)

    @classmethod
    def of(cls, store: RoundStore) -> Audit:
        """List the files and read the records of a run."""
        # Numbers are written after their record, and `committed` after them. Read in the opposite order, every
        # number has its record.
        shown = unless_damaged(shown_rounds, store.place, store.rounds + 1)
        sizes, rounds = store.place.sizes(), store.log.rounds()
        links, commits = _whole(store, rounds)
        return cls(
            store,
            sizes,
            rounds,
            links,
            commits,
            {*commits} if shown is None else shown,
            unless_damaged(read_pruned, store.log),
        )

    @property
    def place(self) -> Place:
        """The place of the run."""
        return self.store.place

    @property
    def schema(self) -> Schema:
        """The schema of the run."""
        return self.store.schema

    @property
    def newest(self) -> int:
        """The last round with a whole record; -1 if there is none."""
        return max(self.commits, default=-1)

    def later(self) -> dict[int, Commit]:
        """Return the rounds that were committed since verifying began, with their records."""
        return _whole(self.store, [round for round in self.store.log.rounds() if round > self.newest])[1]

    def keeps(self, spec: ArraySpec, index: tuple[int, ...]) -> bool:
        """Tell whether a chunk of a committed round must exist.

        Where it is unknown what was pruned, a chunk must exist if it does.
        """
        if not spec.over_rounds:
            return True
        if self.pruned is not None:
            return self.pruned.has_chunk(spec, index)
        there = chunk_key(spec, index) in self.sizes
        if there and spec.shard > 1:
            with suppress(StoreDamaged):  # which is found when the chunk is read
                return index[1] in partitions_in(self.place, spec, index)
        return there

    def find(self, key: str, what: str) -> None:
        """Report that something is wrong with a file."""
        self.findings.append(Finding(key, what))

    def note(self, key: str, what: str) -> None:
        """Report that a file is unfinished."""
        self.notes.append(Finding(key, what))

    def check(self, key: str, read: Callable[[], object]) -> bool:
        """Tell whether `read` raises no error; report the error as a finding.

        The file counts as one of the run.
        """
        self.keys.add(key)
        what = self.refusal(key, read)
        if what is not None:
            self.find(key, what)
        return what is None

    def refusal(self, key: str, read: Callable[[], object]) -> str | None:
        """Return what is wrong with a file according to the error that `read` raises; None if it raises none.

        A `PlaceError` is raised instead, as it says nothing about the content.
        """
        try:
            read()
        except PlaceError:
            raise
        except RoundweaveError as error:
            return str(error).removeprefix(f"{self.place}/{key}").removeprefix(str(self.place)).lstrip(": ")
        return None


def _whole(store: RoundStore, rounds: list[int]) -> tuple[dict[int, Link], dict[int, Commit]]:
    """Return the whole records of these rounds, sealed and parsed, by round."""
    commits = {}
    links = store.log.links(rounds)
    for round, link in links.items():
        with suppress(StoreDamaged):  # reported later as a record that is not whole
            commits[round] = store.log.parsed(round, link)
    return {round: links[round] for round in commits}, commits
