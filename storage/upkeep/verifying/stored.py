"""A run as it is verified: what lies there, and its whole records; and what a look at it tells."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field

from storage.errors import PlaceError, RoundweaveError, StoreDamaged
from storage.hierarchy.chunks import chunk_key
from storage.hierarchy.schema import ArraySpec
from storage.hierarchy.shards import Index, shard_chunks, shard_key
from storage.places.base import Place
from storage.rounds import packed as packing
from storage.rounds.commits import Commit
from storage.rounds.log import Link
from storage.rounds.pruned import Pruned
from storage.rounds.store import RoundStore

SHARD = re.compile(r"(.+)/c\.(0|[1-9][0-9]{0,17})((?:\.0)*)")
"""The key of a shard: its array, its number, and a 0 for each further axis."""


@dataclass(frozen=True)
class Finding:
    """What is wrong with a file of a run; `path` is its key in the run."""

    path: str
    what: str

    def __str__(self) -> str:
        return f"{self.path}: {self.what}"


@dataclass(frozen=True)
class Shard:
    """A shard that lies there: its array, the chunks that its index tells of, and what is wrong with the index."""

    key: str
    spec: ArraySpec
    chunks: tuple[Index, ...] = ()
    unread: Finding | None = None


@dataclass(frozen=True)
class Looked:
    """What one look tells: the keys that belong to the run, what is wrong, and what is merely unfinished."""

    keys: frozenset[str] = frozenset()
    findings: tuple[Finding, ...] = ()
    notes: tuple[Finding, ...] = ()


@dataclass(frozen=True)
class Stored:
    """A run at the moment it is verified.

    `rounds` are those with a record, whole or not; `links` and `commits` the whole ones, by round; `later` those
    that were committed while the numbers were read; `sizes` the bytes of all keys, listed after the records;
    `shards` those of them that are shards. `pruned` is None where its record is damaged, so that nobody knows.
    """

    store: RoundStore
    rounds: list[int]
    links: Mapping[int, Link]
    commits: Mapping[int, Commit]
    sizes: Mapping[str, int]
    shards: Mapping[str, Shard]
    pruned: Pruned | None
    later: Mapping[int, Commit] = field(default_factory=dict)

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

    def keeps(self, spec: ArraySpec, index: Index) -> bool:
        """Whether a chunk of a committed round is to be there; where nobody knows, whether it is."""
        if not spec.over_rounds:
            return True
        if self.pruned is not None:
            return self.pruned.has_chunk(spec, index)
        shard = self.shards.get(shard_key(spec, index) or "")
        return chunk_key(spec, index) in self.sizes or (shard is not None and index in shard.chunks)

    def lies_at(self, spec: ArraySpec, index: Index) -> str:
        """The key of the content that a chunk is in, or that is missing."""
        plain, shard = chunk_key(spec, index), shard_key(spec, index) if spec.over_rounds else None
        if shard is None or plain in self.sizes:
            return plain
        packed = packing.KEY in self.sizes and not any(key.startswith(f"{spec.path}/c/") for key in self.sizes)
        return shard if shard in self.shards or packed else plain


def read_shards(store: RoundStore, keys: Iterable[str]) -> dict[str, Shard]:
    """The shards among the keys, by key."""
    shards = {}
    for key in keys:
        parts = SHARD.fullmatch(key)
        spec = store.tensors.arrays.get(parts[1]) if parts else None
        if parts and spec and len(parts[3]) == 2 * len(spec.chunks) - 2:
            shards[key] = _shard(store.place, key, spec, int(parts[2]))
    return shards


def _shard(place: Place, key: str, spec: ArraySpec, number: int) -> Shard:
    chunks: list[Index] = []
    unread = refused(place, key, lambda: chunks.extend(shard_chunks(place, spec, number)))
    return Shard(key, spec, tuple(chunks), unread)


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
