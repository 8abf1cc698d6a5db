"""List the chunks of tensors that a run must have according to its records, with functions that verify them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from storage.hierarchy.chunks import chunk_key
from storage.hierarchy.schema import ArraySpec, split_array
from storage.rounds.commits import Commit
from storage.rounds.store import RoundStore
from storage.values.digests import NOTHING_KEPT


@dataclass(frozen=True)
class Sealed:
    """Chunks that one digest covers: their arrays, their common index, and a function that verifies them all."""

    arrays: tuple[ArraySpec, ...]
    index: tuple[int, ...]
    read: Callable[[], object]

    @property
    def keys(self) -> list[str]:
        """The keys of the chunks."""
        return [chunk_key(array, self.index) for array in self.arrays]


def sealed_chunks(store: RoundStore, commits: Mapping[int, Commit]) -> Iterator[Sealed]:
    """All chunks of tensors that must exist according to the records of the committed rounds, each once."""
    splits = {commit.split.number: commit for commit in commits.values() if commit.split}
    yield from _frozen(store, commits.values())
    for commit in commits.values():
        yield from _state(store, commit)
        yield from _sent(store, commit)
    for commit in splits.values():
        yield from _split(store, commit)


def _frozen(store: RoundStore, commits: Iterable[Commit]) -> Iterator[Sealed]:
    """The frozen parameters, which are stored once. Every record has their digests, so the first one is used."""
    for commit in list(commits)[:1]:
        for path, array in store.schema.state(1).items():
            if path.startswith("frozen/"):
                yield Sealed((array,), (), partial(store.tensors.read_tensor, commit, path))


def _state(store: RoundStore, commit: Commit) -> Iterator[Sealed]:
    for path in store.schema.state(1) if commit.stored else ():
        if not path.startswith("frozen/"):
            read = partial(store.tensors.read_tensor, commit, path)
            yield Sealed((store.tensors.arrays[path],), (commit.round,), read)


def _sent(store: RoundStore, commit: Commit) -> Iterator[Sealed]:
    """The updates with their carries, and the matches, of one round."""
    arrays = store.tensors.arrays
    vectors = tuple(arrays[path] for path in store.schema.vectors(1))
    matching = tuple(arrays[path] for path in store.schema.matching(1))
    for partition, record in commit.updates.items():
        index = (commit.round, partition)
        if record.digest != NOTHING_KEPT:
            yield Sealed(vectors, index, partial(store.tensors.read_update, commit, partition))
        if record.match is not None:
            yield Sealed(matching, index, partial(store.tensors.read_match, commit, partition))


def _split(store: RoundStore, commit: Commit) -> Iterator[Sealed]:
    if commit.split is not None:
        array = split_array(commit.split.number, commit.split.examples)
        yield Sealed((array,), (0,), partial(store.splits.read, commit))
