"""Verifying the numbers by round: they are copies of what the records say."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.hierarchy.chunks import CHUNK, chunk_key, empty_chunk, read_chunk
from storage.hierarchy.schema import REPORTED, ArraySpec
from storage.parsing import MOST_TOLD
from storage.rounds.commits import width_of
from storage.rounds.widths import narrow, widened
from storage.upkeep.verifying.stored import Finding, Looked, Stored, refused


@dataclass(frozen=True)
class Chunk:
    """A chunk of an array of numbers; `content` is None where it is missing, or `unread` tells what is wrong."""

    array: ArraySpec
    index: int
    content: np.ndarray | None = None
    unread: Finding | None = None

    @property
    def key(self) -> str:
        """Where it lies."""
        return chunk_key(self.array, (self.index,))

    @property
    def rounds(self) -> np.ndarray:
        """The round of each of its rows, int64 (round,)."""
        return np.arange(self.array.chunks[0]) + self.index * self.array.chunks[0]


def read_numbers(stored: Stored) -> list[Chunk]:
    """The chunks of numbers that lie there."""
    chunks = []
    for key in stored.sizes:
        parts = CHUNK.fullmatch(key)
        array = _array(stored, parts[1]) if parts else None
        if parts and array and int(parts[2]) * array.chunks[0] < array.shape[0]:
            chunk = Chunk(array, int(parts[2]))
            chunks += [_read(stored, chunk)] if chunk.key == key else []
    return chunks


def _array(stored: Stored, path: str) -> ArraySpec | None:
    rows = stored.store.history.rows
    if path.partition("/")[0] in REPORTED and path.count("/") == 1:
        return stored.store.schema.reported(path, rows)
    return stored.store.schema.history(rows).get(path)


def _read(stored: Stored, chunk: Chunk) -> Chunk:
    content: list[np.ndarray | None] = [None]

    def read() -> None:
        whole = read_chunk(stored.place, chunk.array, (chunk.index,))
        content[0] = None if whole is None else _shortened(narrow(whole), stored)

    unread = refused(stored.place, chunk.key, read)
    return Chunk(chunk.array, chunk.index, content[0], unread)


def _shortened(chunk: np.ndarray, stored: Stored) -> np.ndarray:
    """A chunk of a million partitions and more, none of which has a record: whether it tells of them."""
    width = max(map(width_of, stored.commits.values()), default=0)
    if chunk.ndim == 1 or chunk.shape[1] <= max(MOST_TOLD, width):
        return chunk
    return np.where(np.isnan(chunk[:, width:]).all(axis=1), np.nan, 0.0)[:, None].repeat(width + 1, axis=1)


def numbers(stored: Stored, chunks: list[Chunk]) -> Looked:
    """Each chunk of numbers against the records, of which those of the newest rounds may not be written yet."""
    told = stored.store.history.told([*stored.commits.values(), *stored.later.values()])
    there = {(chunk.array.path, chunk.index): chunk for chunk in chunks}
    paths, written = {path for path, _ in told}, _written(stored, chunks)
    looks = [_coordinates(stored, [chunk for chunk in chunks if chunk.array.path == "round"])]
    for path, index in sorted(told.keys() | {place for place in there if place[0] in paths}):
        array = _array(stored, path)
        if array is not None:
            chunk = there.get((path, index), Chunk(array, index))
            looks.append(_look_at(stored, chunk, told.get((path, index), empty_chunk(array, 0)), written))
    return Looked(
        frozenset(key for look in looks for key in look.keys),
        tuple(finding for look in looks for finding in look.findings),
        tuple(note for look in looks for note in look.notes),
    )


def _written(stored: Stored, chunks: list[Chunk]) -> int:
    """The last round that `committed` tells of, whose row is written last; the records tell later ones."""
    told = [chunk for chunk in chunks if chunk.array.path == "committed"]
    rounds = [chunk.rounds[chunk.content.astype(bool)] for chunk in told if chunk.content is not None]
    return int(max((row for rows in rounds for row in rows), default=stored.newest))


def _look_at(stored: Stored, chunk: Chunk, told: np.ndarray, written: int) -> Looked:
    """A chunk of numbers, and what the records make it, where those after the `written` round may lack."""
    keys = frozenset([chunk.key])
    if chunk.unread:
        return Looked(keys, (chunk.unread,))
    content = empty_chunk(chunk.array, 0) if chunk.content is None else chunk.content
    width = max(content.shape[-1], told.shape[-1])
    content, told, empty = (widened(each, width) for each in (content, told, empty_chunk(chunk.array, 0)))
    differs, unwritten = ~_alike(content, told), _alike(content, empty)
    # Nobody vouches for rows of rounds that are lost.
    lost = {*stored.rounds, *range(stored.newest)} - stored.commits.keys()
    differs &= ~np.isin(chunk.rounds, list(lost))
    behind = differs & unwritten & ((chunk.rounds >= stored.newest) | (chunk.rounds > written))
    wrong = chunk.rounds[differs & ~behind]
    lacks = f"it lacks round {chunk.rounds[behind][0]}" if behind.any() else ""
    notes = [Finding(chunk.key, f"{lacks} and what follows, until the run goes on")] if lacks else []
    return Looked(keys, tuple(_wrong(stored, chunk, wrong.tolist())), tuple(notes))


def _wrong(stored: Stored, chunk: Chunk, rounds: list[int]) -> list[Finding]:
    """What is wrong in rows of a chunk that differ from their records, or have none."""
    if not rounds:
        return []
    if chunk.content is None:
        return [Finding(chunk.key, "it is missing")]
    alone = [round for round in rounds if round > stored.newest and round not in stored.later]
    if not alone:
        return [Finding(chunk.key, f"its row of round {rounds[0]} is not what the record says")]
    found = [Finding(chunk.key, f"it has a row of round {alone[0]}, of which there is no record")]
    if chunk.array.path == "committed":
        found += [
            Finding(f"commits/{round}.json", f"it is missing, where {chunk.key} tells of it") for round in alone
        ]
    return found


def _alike(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which rows of two chunks are equal, bool (round,); NaN equals NaN."""
    # What is not itself is NaN.
    equal = (left == right) | ((left != left) & (right != right))  # noqa: PLR0124
    rows: np.ndarray = equal.reshape(len(left), -1).all(axis=1)
    return rows


def _coordinates(stored: Stored, chunks: list[Chunk]) -> Looked:
    """The coordinate of rounds, which counts them."""
    array = stored.store.schema.history(stored.store.history.rows)["round"]
    indices = range(min(-(-array.shape[0] // array.chunks[0]), len(chunks) + 1))
    findings = [chunk.unread for chunk in chunks if chunk.unread]
    for chunk in chunks:
        if chunk.content is not None and not np.array_equal(chunk.content, chunk.rounds):
            findings.append(Finding(chunk.key, "it does not count the rounds"))
    missing = {chunk_key(array, (index,)) for index in indices} - {chunk.key for chunk in chunks}
    findings += [Finding(key, "it is missing") for key in missing]
    return Looked(frozenset(chunk.key for chunk in chunks), tuple(findings))
