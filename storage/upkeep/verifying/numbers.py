"""Verify the arrays of numbers, which must be copies of what the commit records say."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from roundweave.storage.errors import StoreDamaged, unless_damaged
from roundweave.storage.hierarchy.chunks import CHUNK, chunk_key, empty_chunk, read_chunk
from roundweave.storage.hierarchy.schema import NUMBERS, ArraySpec
from roundweave.storage.rounds.commits import numbers_of
from roundweave.storage.rounds.numbers import KEY, Copied, put, read_copied
from roundweave.storage.upkeep.verifying.audit import Audit


def numbers(audit: Audit) -> int:
    """Compare each chunk of numbers with the records; returns the last round that was copied, -1 for none.

    The newest rounds may not be copied yet.
    """
    _coordinates(audit)
    statement, arrays = unless_damaged(read_copied, audit.store.log), _stored_arrays(audit)
    if statement:
        _left_out(audit, statement)
    copied = max(_last_committed(audit, arrays), statement.round if statement else -1)
    for index in sorted({*arrays, *(round // audit.schema.block for round in audit.commits)}):
        recorded = put({}, audit.schema, audit.commits.values(), index)
        for path in sorted(arrays.get(index, set()) | recorded.keys()):
            _compare(audit, path, index, recorded.get(path), copied)
    return copied


def _left_out(audit: Audit, statement: Copied) -> None:
    """Find an array with copied numbers that ``commits/copied.json`` leaves out."""
    copied = [commit for round, commit in audit.commits.items() if round <= statement.round]
    numbers = {(path, commit.round // audit.schema.block) for commit in copied for path in numbers_of(commit)}
    out = sorted(path for path, index in numbers if statement.since.get(path, index + 1) > index)
    if out:
        audit.find(KEY, f"it leaves out {out[0]}")


def _stored_arrays(audit: Audit) -> dict[int, set[str]]:
    """The arrays that have a chunk of a block of rounds, by block, without arrays that no record knows."""
    known = {path for commit in audit.commits.values() for path in numbers_of(commit)}
    known |= {"committed", *(path for path in NUMBERS if "/" in path)}
    arrays: dict[int, set[str]] = {}
    for key in audit.sizes:
        parts = CHUNK.fullmatch(key)
        if parts and parts[1] in known and int(parts[2]) * audit.schema.block <= audit.store.rounds:
            index = int(parts[2])
            if key == chunk_key(_spec(audit, parts[1]), (index,)):
                arrays.setdefault(index, set()).add(parts[1])
    return arrays


def _spec(audit: Audit, path: str) -> ArraySpec:
    return audit.schema.number(path, audit.store.rounds + 1)


def _rounds(audit: Audit, index: int) -> np.ndarray:
    """The rounds of a block, int64 (round,)."""
    return np.arange(index * audit.schema.block, (index + 1) * audit.schema.block)


def _last_committed(audit: Audit, arrays: Mapping[int, set[str]]) -> int:
    """The last round in the array `committed`, which is written last; -1 for none."""
    for index in sorted((index for index, paths in arrays.items() if "committed" in paths), reverse=True):
        chunk, _ = _read(audit, _spec(audit, "committed"), index)
        if chunk.any():
            return int(_rounds(audit, index)[chunk][-1])
    return -1


def _read(audit: Audit, spec: ArraySpec, index: int) -> tuple[np.ndarray, str | None]:
    """A stored chunk, or one of fill values where there is none; and what is wrong where it cannot be read."""
    chunks = [empty_chunk(spec)]

    def read() -> None:
        chunk = read_chunk(audit.place, spec, (index,))
        chunks.extend([] if chunk is None else [chunk])

    wrong = audit.refusal(chunk_key(spec, (index,)), read)
    return chunks[-1], wrong


def _compare(audit: Audit, path: str, index: int, recorded: np.ndarray | None, copied: int) -> None:
    """Compare a stored chunk of numbers with the `recorded` one; rows after round `copied` may be missing."""
    spec = _spec(audit, path)
    key, empty = chunk_key(spec, (index,)), empty_chunk(spec)
    content, damage = _read(audit, spec, index)
    audit.keys.add(key)
    if damage:
        audit.find(key, damage)
        return
    rounds, lost = _rounds(audit, index), {*audit.rounds, *range(audit.newest)} - audit.commits.keys()
    # Rows of lost rounds cannot be checked, as their records are gone.
    unlike = ~_alike(content, empty if recorded is None else recorded) & ~np.isin(rounds, list(lost))
    behind = unlike & _alike(content, empty) & (rounds > copied)
    wrong = rounds[unlike & ~behind].tolist()
    if behind.any():
        audit.note(key, f"it lacks round {rounds[behind][0]} and what follows, until the run goes on")
    newest = audit.newest
    if wrong and wrong[-1] > newest and (later := audit.later()):
        known = {**audit.commits, **later}
        recorded = put({}, audit.schema, known.values(), index).get(path, empty)
        unlike &= ~_alike(content, recorded)
        wrong, newest = rounds[unlike & ~behind].tolist(), max(later)
    alone = [round for round in wrong if round > newest]
    if alone:
        audit.find(key, f"it has a row of round {alone[0]}, of which there is no record")
        for round in alone if path == "committed" else ():
            audit.find(f"commits/{round}.json", f"it is missing, where {key} tells of it")
    elif wrong:
        audit.find(key, f"its row of round {wrong[0]} is not what the record says")


def _alike(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which rows of two chunks are equal, bool (round,); NaN equals NaN."""
    equal = (left == right) | (np.isnan(left) & np.isnan(right))
    rows: np.ndarray = equal.reshape(len(left), -1).all(axis=1)
    return rows


def _coordinates(audit: Audit) -> None:
    """Verify the coordinate `round`, which counts the rounds."""
    spec = _spec(audit, "round")
    for index in range(-(-spec.shape[0] // spec.chunks[0])):

        def check(index: int = index) -> None:
            chunk, first = read_chunk(audit.place, spec, (index,)), index * spec.chunks[0]
            if chunk is None:
                raise StoreDamaged("it is missing")
            if not np.array_equal(chunk, np.arange(first, first + len(chunk))):
                raise StoreDamaged("it does not count the rounds")

        audit.check(chunk_key(spec, (index,)), check)
