"""Verify the arrays of numbers, which must be copies of what the commit records say."""

from __future__ import annotations

from functools import partial

import numpy as np

from roundweave.storage.errors import StoreDamaged
from roundweave.storage.hierarchy.chunks import chunk_key, empty_chunk, read_chunk
from roundweave.storage.hierarchy.schema import NUMBERS, ArraySpec
from roundweave.storage.rounds.commits import numbers_of
from roundweave.storage.rounds.numbers import KEY, put
from roundweave.storage.upkeep.verifying.audit import Audit


def numbers(audit: Audit) -> None:
    """Read each chunk of numbers, and compare the rows of the rounds that are said to be copied with the records.

    Other rows are numbers of no round, unless `committed` has one of a round without a record. The records of lost
    rounds are gone.
    """
    copied, size = audit.copied, audit.schema.block
    commits = [commit for round, commit in audit.commits.items() if round <= copied.round]
    known = {path for commit in audit.commits.values() for path in numbers_of(commit)}
    known |= {"committed", *(path for path in NUMBERS if "/" in path)}
    _coordinates(audit)
    for index in range(audit.newest // size + 1):
        recorded = put({}, audit.schema, commits, index)
        rows = [commit.round % size for commit in commits if commit.round // size == index]
        for path in sorted(known | recorded.keys()):
            spec, said = _spec(audit, path), copied.since.get(path, index + 1) <= index <= copied.round // size
            if chunk_key(spec, (index,)) in audit.sizes or said:
                chunk = recorded.get(path, empty_chunk(spec))
                audit.check(chunk_key(spec, (index,)), partial(_compare, audit, spec, index, chunk, rows))
            if path in recorded and not said:
                audit.find(KEY, f"it leaves out {path}")


def _compare(audit: Audit, spec: ArraySpec, index: int, recorded: np.ndarray, rows: list[int]) -> None:
    """Raise `StoreDamaged` unless these rows of a stored chunk are those of the `recorded` one; NaN equals NaN."""
    chunk = _stored(audit, spec, index)
    for row in rows:
        if not np.array_equal(chunk[row], recorded[row], equal_nan=True):
            round = index * audit.schema.block + row
            raise StoreDamaged(f"its row of round {round} is not what the record says")
    later = np.flatnonzero(chunk) + index * audit.schema.block if spec.path == "committed" else ()
    for round in (int(each) for each in later if each > audit.newest):
        if not audit.store.log.has(round):
            raise StoreDamaged(f"it has a row of round {round}, of which there is no record")


def _coordinates(audit: Audit) -> None:
    """Verify the coordinate `round`, which has the number of each round."""
    spec = _spec(audit, "round")

    def count(index: int) -> None:
        first = index * spec.chunks[0]
        if not np.array_equal(_stored(audit, spec, index), np.arange(first, first + spec.chunks[0])):
            raise StoreDamaged("it does not count the rounds")

    for index in range(-(-spec.shape[0] // spec.chunks[0])):
        audit.check(chunk_key(spec, (index,)), partial(count, index))


def _spec(audit: Audit, path: str) -> ArraySpec:
    return audit.schema.number(path, audit.store.rounds + 1)


def _stored(audit: Audit, spec: ArraySpec, index: int) -> np.ndarray:
    chunk = read_chunk(audit.place, spec, (index,))
    if chunk is None:
        raise StoreDamaged("it is missing")
    return chunk
