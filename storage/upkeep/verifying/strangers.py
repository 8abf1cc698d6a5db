"""Find files that belong to none of a run's rounds: left by a writer at work or killed, or added by somebody."""

from __future__ import annotations

import re

from storage.hierarchy.chunks import CHUNK
from storage.hierarchy.documents import NAME
from storage.hierarchy.schema import REPORTED, ArraySpec
from storage.upkeep.verifying.stored import Finding, Looked, Stored

HALF_WRITTEN = re.compile(r"(.+/)?\.[0-9a-f]{16}\.partial")


SPLIT = re.compile(rf"partitions/(?:([0-9]{{1,18}})/(?:{re.escape(NAME)}|c/0)|{re.escape(NAME)})")


def strangers(stored: Stored, known: frozenset[str]) -> Looked:
    """Report the keys that are not `known`: as notes where a writer may have left them, otherwise as findings."""
    findings, notes = [], []
    for key in stored.sizes.keys() - known:
        left = _left(stored, key)
        if left is None:
            findings.append(Finding(key, "it does not belong to the run"))
        else:
            notes.append(Finding(key, left))
    return Looked(findings=tuple(findings), notes=tuple(notes))


def _left(stored: Stored, key: str) -> str | None:
    """Why a writer may have left a file; None for a file that no writer leaves."""
    if HALF_WRITTEN.fullmatch(key):
        return "it is half-written, by a writer that is at work or was killed"
    if parts := SPLIT.fullmatch(key):
        used = [commit.split.number for commit in stored.commits.values() if commit.split]
        return "no committed round uses this split yet" if int(parts[1] or 0) > max(used, default=-1) else None
    if key.partition("/")[0] in REPORTED and stored.unread:
        return "it may be of a round whose record is damaged"
    return _of_round(stored, key)


def _of_round(stored: Stored, key: str) -> str | None:
    """Why a chunk of tensors may be there: its round is not committed, was pruned, or lost its record."""
    parts = CHUNK.fullmatch(key)
    array = stored.store.tensors.arrays.get(parts[1]) if parts else None
    if parts is None or array is None or "round" not in array.dims:
        return None
    index = (int(parts[2]), *map(int, parts[3].split("/")[1:]))
    # On all axes after those of rounds and partitions there is a single chunk.
    counts = [size if chunk == 1 else 1 for size, chunk in zip(array.shape, array.chunks, strict=True)]
    inside = len(index) == len(counts) and all(i < max(count, 1) for i, count in zip(index, counts, strict=True))
    return why_left(stored, array, index) if inside else None


def why_left(stored: Stored, array: ArraySpec, index: tuple[int, ...]) -> str | None:
    """Why a chunk that no record needs may be there; None for one that no writer leaves."""
    if not stored.keeps(array, index):
        return f"it is of round {index[0]}, which was pruned, and goes with the next pruning"
    if commit := stored.commits.get(index[0]):
        unstored = not (array.by_partition or commit.stored)
        return f"it is of the state of round {index[0]}, which is not stored, and may go" if unstored else None
    state = "not committed" if index[0] > stored.newest else "lost"
    return f"it is of round {index[0]}, which is {state}"
