"""Verify the arrays of numbers, which must be copies of what the commit records say."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from functools import partial

import numpy as np

from roundweave.storage.errors import StoreDamaged, StoreError
from roundweave.storage.hierarchy.schema import NUMBERS, ArraySpec
from roundweave.storage.hierarchy.zarr_format import chunk_key, empty_chunk, read_chunk
from roundweave.storage.rounds.commits import Commit, numbers_of
from roundweave.storage.rounds.numbers import KEY, put
from roundweave.storage.upkeep.verifying.audit import Audit


def numbers(audit: Audit) -> None:
    """Read each chunk of numbers, and compare the rows of copied rounds with the records.

    Copied are the rounds of which ``commits/copied.json`` or the array `committed` tells. Nobody reads other rows,
    and the records of lost rounds are gone.
    """
    _coordinates(audit)
    known = {path for commit in audit.commits.values() for path in numbers_of(commit)}
    known |= {"committed", *(path for path in NUMBERS if "/" in path)}
    for index in range(audit.newest // audit.schema.block + 1):
        copied = _copied(audit, index)
        recorded = put({}, audit.schema, copied, index)
        for path in sorted(known):
            spec = _spec(audit, path)
            if path in recorded or chunk_key(spec, (index,)) in audit.sizes:
                rows = {commit.round: commit.round % audit.schema.block for commit in copied}
                chunk = recorded.get(path, empty_chunk(spec))
                audit.check(chunk_key(spec, (index,)), partial(_compare, audit, spec, index, chunk, rows))
        said = {path for commit in copied if commit.round <= audit.copied.round for path in numbers_of(commit)}
        for path in said:
            if audit.copied.since.get(path, index + 1) > index:
                audit.find(KEY, f"it leaves out {path}")


def _copied(audit: Audit, index: int) -> list[Commit]:
    """The records of a block's copied rounds; finds a round in `committed` that has no record."""
    spec, chunk = _spec(audit, "committed"), None
    with suppress(StoreError):  # which is found when its rows are compared
        chunk = read_chunk(audit.place, spec, (index,))
    first, key = index * audit.schema.block, chunk_key(spec, (index,))
    told = set() if chunk is None else {first + int(row) for row in np.flatnonzero(chunk)}
    for round in told:
        if round > audit.newest and not audit.store.log.has(round):
            audit.find(key, f"it has a row of round {round}, of which there is no record")
    block = [commit for round, commit in audit.commits.items() if round // audit.schema.block == index]
    copied = [commit for commit in block if commit.round <= audit.copied.round or commit.round in told]
    if len(copied) < len(block):
        behind = min(commit.round for commit in block if commit not in copied)
        audit.note(key, f"it lacks round {behind} and what follows, until the run goes on")
    return copied


def _compare(audit: Audit, spec: ArraySpec, index: int, recorded: np.ndarray, rows: Mapping[int, int]) -> None:
    """Raise `StoreDamaged` unless a stored chunk has the same rows as the `recorded` one; NaN equals NaN.

    `rows` are the numbers of the compared rows by round.
    """
    chunk = _stored(audit, spec, index)
    for round, row in rows.items():
        if not np.array_equal(chunk[row], recorded[row], equal_nan=True):
            raise StoreDamaged(f"its row of round {round} is not what the record says")


def _coordinates(audit: Audit) -> None:
    """Verify the coordinate `round`, which has the number of each round."""
    spec = _spec(audit, "round")

    def count(index: int) -> None:
        first = index * spec.chunks[0]
        if not np.array_equal(_stored(audit, spec, index), np.arange(first, first + spec.chunks[0])):
            raise StoreDamaged("its values are not the numbers of the rounds")

    for index in range(-(-spec.shape[0] // spec.chunks[0])):
        audit.check(chunk_key(spec, (index,)), partial(count, index))


def _spec(audit: Audit, path: str) -> ArraySpec:
    return audit.schema.number(path, audit.store.rounds + 1)


def _stored(audit: Audit, spec: ArraySpec, index: int) -> np.ndarray:
    chunk = read_chunk(audit.place, spec, (index,))
    if chunk is None:
        raise StoreDamaged("it is missing")
    return chunk
