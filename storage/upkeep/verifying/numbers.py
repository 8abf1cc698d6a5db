"""Verify the arrays of numbers, which must be copies of what the commit records say."""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import numpy as np

from storage.errors import StoreDamaged
from storage.hierarchy.chunks import CHUNK, chunk_key, empty_chunk, read_chunk
from storage.hierarchy.schema import NUMBERS, ArraySpec
from storage.rounds.commits import numbers_of
from storage.rounds.numbers import KEY, put, read_copied
from storage.upkeep.verifying.stored import Finding, Looked, Stored, refused


def numbers(stored: Stored) -> Looked:
    """Compare each chunk of numbers with the records. The newest rounds may not be copied yet."""
    stored_paths, looks = _stored_arrays(stored), [_coordinates(stored), _left_out(stored)]
    copied = last_copied(stored)
    for index in sorted({*stored_paths, *(round // stored.store.schema.block for round in stored.commits)}):
        recorded = _recorded(stored, index)
        for path in sorted(stored_paths.get(index, set()) | recorded.keys()):
            looks.append(_look_at(stored, path, index, recorded.get(path), copied))
    return Looked(
        frozenset(key for look in looks for key in look.keys),
        tuple(finding for look in looks for finding in look.findings),
        tuple(note for look in looks for note in look.notes),
    )


def _left_out(stored: Stored) -> Looked:
    """Find arrays with copied numbers that ``commits/copied.json`` leaves out."""
    statement, block = read_copied(stored.store.log), stored.store.schema.block
    copied = [commit for round, commit in stored.commits.items() if statement and round <= statement.round]
    numbers = {(path, commit.round // block) for commit in copied for path in numbers_of(commit)}
    out = sorted(p for p, index in numbers if statement and statement.since.get(p, index + 1) > index)
    return Looked(findings=tuple(Finding(KEY, f"it leaves out {path}") for path in out[:1]))


def _stored_arrays(stored: Stored) -> dict[int, set[str]]:
    """The arrays that have a chunk of a block of rounds, by block, without arrays that no record knows."""
    known = {path for commit in stored.commits.values() for path in numbers_of(commit)}
    known |= {"committed", *(path for path in NUMBERS if "/" in path)}
    arrays: dict[int, set[str]] = {}
    for key in stored.sizes:
        parts = CHUNK.fullmatch(key)
        if parts and parts[1] in known and int(parts[2]) * stored.store.schema.block <= stored.store.rounds:
            index = int(parts[2])
            if key == chunk_key(_spec(stored, parts[1]), (index,)):
                arrays.setdefault(index, set()).add(parts[1])
    return arrays


def _spec(stored: Stored, path: str) -> ArraySpec:
    return stored.store.schema.number(path, stored.store.rounds + 1)


def _rounds(stored: Stored, index: int) -> np.ndarray:
    """The rounds of a block, int64 (round,)."""
    block = stored.store.schema.block
    return np.arange(index * block, (index + 1) * block)


def _recorded(stored: Stored, index: int) -> dict[str, np.ndarray]:
    """The chunks of a block of rounds that follow from the records, by array."""
    chunks: dict[str, np.ndarray] = {}
    for round, commit in stored.commits.items():
        if round // stored.store.schema.block == index:
            put(chunks, stored.store.schema, commit)
    return chunks


def last_copied(stored: Stored) -> int:
    """The last round that was copied into the arrays, -1 for none.

    It is the last one in the array `committed`, which is written last, or the one in ``commits/copied.json``.
    """
    spec, statement = _spec(stored, "committed"), read_copied(stored.store.log)
    for index in sorted(
        (index for index, paths in _stored_arrays(stored).items() if spec.path in paths), reverse=True
    ):
        chunk = _read(stored, spec, index)
        if isinstance(chunk, np.ndarray) and chunk.any():
            return max(int(_rounds(stored, index)[chunk][-1]), statement.round if statement else -1)
    return statement.round if statement else -1


def _read(stored: Stored, spec: ArraySpec, index: int) -> np.ndarray | Finding:
    """A stored chunk; one of fill values where it is missing, and a finding where it cannot be read."""
    chunks = [empty_chunk(spec)]

    def read() -> None:
        chunk = read_chunk(stored.place, spec, (index,))
        chunks.extend([] if chunk is None else [chunk])

    return refused(stored.place, chunk_key(spec, (index,)), read) or chunks[-1]


def _look_at(stored: Stored, path: str, index: int, recorded: np.ndarray | None, copied: int) -> Looked:
    """Compare a stored chunk of numbers with the `recorded` one; rows after round `copied` may be missing."""
    spec = _spec(stored, path)
    key, empty, content = chunk_key(spec, (index,)), empty_chunk(spec), _read(stored, spec, index)
    if isinstance(content, Finding):
        return Looked(frozenset([key]), (content,))
    rounds, lost = _rounds(stored, index), {*stored.rounds, *range(stored.newest)} - stored.commits.keys()
    # Rows of lost rounds cannot be checked, as their records are gone.
    differs = ~_alike(content, empty if recorded is None else recorded) & ~np.isin(rounds, list(lost))
    behind = differs & _alike(content, empty) & (rounds > copied)
    wrong = rounds[differs & ~behind].tolist()
    if wrong and wrong[-1] > stored.newest and (later := stored.later()):
        again = replace(stored, commits={**stored.commits, **later})
        return _look_at(again, path, index, _recorded(again, index).get(path), copied)
    lacks = f"it lacks round {rounds[behind][0]} and what follows, until the run goes on" if behind.any() else ""
    return Looked(frozenset([key]), _wrong(stored, key, path, wrong), (Finding(key, lacks),) if lacks else ())


def _wrong(stored: Stored, key: str, path: str, rounds: list[int]) -> tuple[Finding, ...]:
    """The findings for rows of these rounds, which differ from the records."""
    alone = [round for round in rounds if round > stored.newest]
    if alone:
        what = f"it is missing, where {key} tells of it"
        records = [Finding(f"commits/{round}.json", what) for round in alone] if path == "committed" else []
        return Finding(key, f"it has a row of round {alone[0]}, of which there is no record"), *records
    return tuple(Finding(key, f"its row of round {n} is not what the record says") for n in rounds[:1])


def _alike(left: np.ndarray, right: np.ndarray) -> np.ndarray:
    """Which rows of two chunks are equal, bool (round,); NaN equals NaN."""
    equal = (left == right) | (np.isnan(left) & np.isnan(right))
    rows: np.ndarray = equal.reshape(len(left), -1).all(axis=1)
    return rows


def _coordinates(stored: Stored) -> Looked:
    """Verify the coordinate `round`, which counts the rounds."""
    spec = _spec(stored, "round")
    indices = range(-(-spec.shape[0] // spec.chunks[0]))
    checks = {chunk_key(spec, (index,)): partial(_check_coordinate, stored, spec, index) for index in indices}
    findings = [refused(stored.place, key, check) for key, check in checks.items()]
    return Looked(frozenset(checks), tuple(filter(None, findings)))


def _check_coordinate(stored: Stored, spec: ArraySpec, index: int) -> None:
    chunk, first = read_chunk(stored.place, spec, (index,)), index * spec.chunks[0]
    if chunk is None:
        raise StoreDamaged("it is missing")
    if not np.array_equal(chunk, np.arange(first, first + len(chunk))):
        raise StoreDamaged("it does not count the rounds")
