"""The run that is being verified, with its files and records as listed at the start, and the form of results."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass

from storage.errors import PlaceError, RoundweaveError, StoreDamaged
from storage.hierarchy.chunks import chunk_key
from storage.hierarchy.schema import ArraySpec
from storage.places.base import Place
from storage.rounds.commits import Commit
from storage.rounds.log import Link
from storage.rounds.pruned import Pruned
from storage.rounds.store import RoundStore


@dataclass(frozen=True)
class Finding:
    """Something wrong with a file of a run: the file's `path` in the run, and `what` is wrong."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True)
class Looked:
    """The result of one check: the keys that belong to the run, what is wrong, and what is merely unfinished."""

    keys: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Stored:
    """A run as it is when verifying begins.

    `rounds` are those with a record, whole or not. `links` and `commits` are the whole records by round. `sizes`
    are the bytes of all files by key, listed before the records. `pruned` is None where the record of it is
    damaged.
    """

    store: RoundStore
    rounds: list[int]
    links: Mapping[int, Link]
    commits: Mapping[int, Commit]
    sizes: Mapping[str, int]
    pruned: Pruned | None

    @property
    def place(self) -> Place:
        """The place of the run."""
        return self.store.place

    @property
    def newest(self) -> int:
        """The last round with a whole record; -1 where there is none."""
        return max(self.commits, default=-1)

    @property
    def unread(self) -> set[int]:
        """The rounds with records that are not whole."""
        return set(self.rounds) - self.commits.keys()

    def later(self) -> dict[int, Commit]:
        """The rounds that were committed since verifying began, with their records."""
        return whole_commits(self.store, [round for round in self.store.log.rounds() if round > self.newest])[1]

    def keeps(self, spec: ArraySpec, index: tuple[int, ...]) -> bool:
        """Whether a chunk of a committed round must exist.

        Where it is unknown what was pruned, a chunk must exist if it does.
        """
        if not spec.over_rounds:
            return True
        return chunk_key(spec, index) in self.sizes if self.pruned is None else self.pruned.has_chunk(spec, index)


def read_known(store: RoundStore) -> Pruned | None:
    """What was pruned from a run; None where the record of it is damaged."""
    try:
        return store.tensors.pruned()
    except StoreDamaged:
        return None


def whole_commits(store: RoundStore, rounds: list[int]) -> tuple[dict[int, Link], dict[int, Commit]]:
    """The whole records of these rounds, sealed and parsed, by round."""
    commits = {}
    links = store.log.links(rounds)
    for round, link in links.items():
        with suppress(StoreDamaged):  # reported later as a record that is not whole
            commits[round] = store.log.parsed(round, link)
    return {round: links[round] for round in commits}, commits


def refused(place: Place, key: str, read: Callable[[], object]) -> Finding | None:
    """A finding with the error that `read` raises, None where it raises none.

    A `PlaceError` is raised instead, as it says nothing about the content.
    """
    try:
        read()
    except PlaceError:
        raise
    except RoundweaveError as error:
        return Finding(key, str(error).removeprefix(f"{place}/{key}").removeprefix(str(place)).lstrip(": "))
    return None
