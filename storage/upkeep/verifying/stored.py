"""A run as it is verified: what lies there, and its whole records; and what a look at it tells."""

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
    """What is wrong with a file of a run; `path` is its key in the run."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True)
class Looked:
    """What one look tells: the keys that belong to the run, what is wrong, and what is merely unfinished."""

    keys: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Stored:
    """A run at the moment it is verified.

    `rounds` are those with a record, whole or not; `links` and `commits` the whole ones, by round; `sizes` the
    bytes of all keys, listed before the records. `pruned` is None where its record is damaged, and nobody knows.
    """

    store: RoundStore
    rounds: list[int]
    links: Mapping[int, Link]
    commits: Mapping[int, Commit]
    sizes: Mapping[str, int]
    pruned: Pruned | None

    @property
    def place(self) -> Place:
        """Where it lies."""
        return self.store.place

    @property
    def newest(self) -> int:
        """The last committed round; -1 where there is none."""
        return max(self.commits, default=-1)

    @property
    def unread(self) -> set[int]:
        """The rounds with records that are not whole."""
        return set(self.rounds) - self.commits.keys()

    def later(self) -> dict[int, Commit]:
        """What was committed since, by round."""
        return whole_commits(self.store, [round for round in self.store.log.rounds() if round > self.newest])[1]

    def keeps(self, spec: ArraySpec, index: tuple[int, ...]) -> bool:
        """Whether a chunk of a committed round is to be there; where nobody knows, whether it is."""
        if not spec.over_rounds:
            return True
        return chunk_key(spec, index) in self.sizes if self.pruned is None else self.pruned.has_chunk(spec, index)


def read_known(store: RoundStore) -> Pruned | None:
    """What was pruned; None where its record is damaged."""
    try:
        return store.tensors.pruned()
    except StoreDamaged:
        return None


def whole_commits(store: RoundStore, rounds: list[int]) -> tuple[dict[int, Link], dict[int, Commit]]:
    """The whole ones of these rounds' records, as they are sealed and what they say."""
    commits = {}
    links = store.log.links(rounds)
    for round, link in links.items():
        with suppress(StoreDamaged):  # found as one that is not whole
            commits[round] = store.log.parsed(round, link)
    return {round: links[round] for round in commits}, commits


def refused(place: Place, key: str, read: Callable[[], object]) -> Finding | None:
    """What reading a file raises, as a finding; a disk that fails raises `PlaceError`."""
    try:
        read()
    except PlaceError:
        raise
    except RoundweaveError as error:
        return Finding(key, str(error).removeprefix(f"{place}/{key}").removeprefix(str(place)).lstrip(": "))
    return None
