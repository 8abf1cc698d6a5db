"""The numbers that a commit tells, by the path of their array: their names, their rows, and a digest over them."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from storage.errors import UsageError
from storage.hierarchy.documents import NAME
from storage.rounds.commits import Commit

METRIC = re.compile(r"[A-Za-z0-9_@ -][A-Za-z0-9_.@ -]*")


TAKEN = ("round", "partition", "committed", NAME)
"""Names that mean something else to those who read the hierarchy."""


def metric_problem(name: object) -> str | None:
    """Why a metric or score cannot be called so, as its name is part of a path; None where it can."""
    if not isinstance(name, str):
        return f"a metric's name is text, not {type(name).__name__}"
    if name in TAKEN:
        return f"{name!r} is taken; give the metric another name"
    if len(name) > 100 or not METRIC.fullmatch(name):
        return f"{name[:120]!r} is no metric's name: 1 to 100 of A-Z a-z 0-9 _ - . @ and space, no leading dot"
    return None


def check_names(commit: Commit) -> None:
    """Raise `UsageError` for a metric or a score that cannot be kept under its name."""
    metrics = [name for update in commit.updates.values() for name in update.metrics]
    scores = list(commit.score.values) if commit.score else []
    if "loss" in scores:
        raise UsageError("a score cannot be called 'loss', which is the mean loss; give it another name")
    for name in dict.fromkeys([*metrics, *scores]):
        if problem := metric_problem(name):
            raise UsageError(problem)


def reported_by(commits: Iterable[Commit]) -> set[str]:
    """The arrays of the metrics and scores that commits tell of."""
    told: set[str] = set()
    for commit in commits:
        if commit.score is not None:
            told |= {"scores/loss", *(f"scores/{name}" for name in commit.score.values)}
        told |= {f"metrics/{name}" for update in commit.updates.values() for name in update.metrics}
    return told


def rows_of(commit: Commit, partitions: int) -> dict[str, Any]:
    """What a commit says, by the path of its array: a number, or (partition,) with NaN where there is none.

    That the round is committed comes last: where that is said, the others are there.
    """
    score = commit.score
    rows: dict[str, Any] = {"bookkeeping/seconds": commit.seconds}
    if score is not None:
        rows |= {"scores/loss": score.loss, **{f"scores/{name}": value for name, value in score.values.items()}}
    for partition, update in commit.updates.items():
        kept = {"weight": update.weight, "accepted": update.refused is None, "map_seconds": update.seconds}
        numbers = {f"bookkeeping/{name}": value for name, value in kept.items()}
        numbers |= {f"metrics/{name}": value for name, value in update.metrics.items()}
        for path, number in numbers.items():
            rows.setdefault(path, np.full(partitions, np.nan))[partition] = number
    return rows | {"committed": True}


def numbers_digest(before: str, rows: Mapping[str, np.ndarray]) -> str:
    """SHA-256 over the digest of the round before and a round's numbers, each () or (partition,), by path.

    Where there is none, or NaN, nothing is told, so that it is the same of a commit's rows and of stored ones.
    """
    total = hashlib.sha256(before.encode())
    for path in sorted(rows):
        row = np.atleast_1d(np.asarray(rows[path], "<f8"))
        (told,) = np.nonzero(~np.isnan(row))
        if told.size:
            total.update(f"\n{path} {told.size}\n".encode())
            total.update(told.astype("<i8").tobytes() + row[told].tobytes())
    return total.hexdigest()


def commit_digest(before: str, commit: Commit) -> str:
    """`numbers_digest` of a commit's own rows."""
    rows = rows_of(commit, max(commit.updates, default=-1) + 1)
    return numbers_digest(before, {path: row for path, row in rows.items() if path != "committed"})
