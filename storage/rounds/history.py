"""The numbers of a run by round, which commits can make anew: coordinates, bookkeeping, scores and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from itertools import groupby
from typing import Any

import numpy as np

from storage.errors import UsageError
from storage.places.base import Place
from storage.rounds.chunks import empty_chunk, read_chunk, write_chunk
from storage.rounds.commits import Commit
from storage.rounds.documents import NAME, create_documents, replace_document
from storage.rounds.schema import METRIC_ROWS, REPORTED, ROUND_ROWS, ArraySpec, Schema

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


def rows_of(commit: Commit, partitions: int) -> dict[str, Any]:
    """What a commit says, by the path of its array: a number, or (partition,) with NaN where there is none."""
    score = commit.score
    rows: dict[str, Any] = {"committed": True, "bookkeeping/seconds": commit.seconds}
    if score is not None:
        rows |= {"scores/loss": score.loss, **{f"scores/{name}": value for name, value in score.values.items()}}
    for partition, update in commit.updates.items():
        kept = {"weight": update.weight, "accepted": update.refused is None, "map_seconds": update.seconds}
        numbers = {f"bookkeeping/{name}": value for name, value in kept.items()}
        numbers |= {f"metrics/{name}": value for name, value in update.metrics.items()}
        for path, number in numbers.items():
            rows.setdefault(path, np.full(partitions, np.nan))[partition] = number
    return rows


class History:
    """The arrays of numbers, for so many rows.

    Those of metrics and scores come into being with their first number. Chunks are written when there is something
    to say; absent ones read as NaN.
    """

    def __init__(self, place: Place, schema: Schema, rows: int, fsync: bool = False) -> None:
        self.place = place
        self.schema = schema
        self.rows = rows
        self.fsync = fsync
        self._arrays = schema.history(rows)

    def names(self, group: str) -> list[str]:
        """The metrics or the scores that there are, sorted."""
        return [name for name in self.place.names(group) if name != NAME]

    def arrays(self) -> dict[str, ArraySpec]:
        """All arrays that there are now, by path."""
        paths = [f"{group}/{name}" for group in REPORTED for name in self.names(group)]
        return self._arrays | {path: self.schema.reported(path, self.rows) for path in paths}

    def read(self, path: str, rows: int | None = None) -> np.ndarray:
        """The first rows of an array of numbers, (round,) or (round, partition); NaN where there is none."""
        spec = self._arrays.get(path) or self.schema.reported(path, self.rows)
        rows = self.rows if rows is None else rows
        chunks = [read_chunk(self.place, spec, (index,)) for index in range(-(-rows // METRIC_ROWS))]
        return np.concatenate([empty_chunk(spec) if chunk is None else chunk for chunk in chunks])[:rows]

    def add(self, commit: Commit) -> None:
        """Write the row of a commit."""
        index, row = divmod(commit.round, METRIC_ROWS)
        for path, value in rows_of(commit, self.schema.partitions).items():
            spec = self._array(path)
            chunk = read_chunk(self.place, spec, (index,))
            chunk = empty_chunk(spec) if chunk is None else chunk
            chunk[row] = value
            self._write(spec, index, chunk)

    def write_rounds(self) -> None:
        """Write the coordinate of rounds, which is the only array that is written ahead."""
        for start in range(0, self.rows, ROUND_ROWS):
            self._write(self._arrays["round"], start // ROUND_ROWS, np.arange(start, start + ROUND_ROWS))

    def describe(self) -> None:
        """Describe the arrays that there are, with as many rows as this history has; `commits` comes last."""
        self.write_rounds()
        for _, spec in sorted(self.arrays().items(), key=lambda item: item[0] == "commits"):
            replace_document(self.place, spec)

    def rebuild(self, commits: Iterable[Commit]) -> None:
        """Make all numbers and documents anew from these commits, which ascend."""
        self._arrays = self.schema.history(self.rows)
        self.describe()
        written = set()
        for index, block in groupby(commits, key=lambda commit: commit.round // METRIC_ROWS):
            self._rebuild_chunks(index, list(block))
            written.add(str(index))
        for path in self.arrays().keys() - {"round", "commits"}:
            for chunk in self.place.names(f"{path}/c"):
                if chunk not in written:
                    self.place.delete(f"{path}/c/{chunk}")

    def _rebuild_chunks(self, index: int, commits: Sequence[Commit]) -> None:
        """Write the chunks of these commits' rounds, and delete those of which they say nothing."""
        rows = {commit.round % METRIC_ROWS: rows_of(commit, self.schema.partitions) for commit in commits}
        told = {path for row in rows.values() for path in row}
        for path in sorted(told):
            spec = self._array(path)
            chunk = empty_chunk(spec)
            for number, row in rows.items():
                chunk[number] = row.get(path, chunk[number])
            self._write(spec, index, chunk)
        for path in self.arrays().keys() - told - {"round", "commits"}:
            self.place.delete(f"{path}/c/{index}")

    def _array(self, path: str) -> ArraySpec:
        """An array of numbers, which is there from now on."""
        if path not in self._arrays:
            spec = self.schema.reported(path, self.rows)
            create_documents(self.place, [spec])
            self._arrays[path] = spec
        return self._arrays[path]

    def _write(self, spec: ArraySpec, index: int, chunk: np.ndarray) -> None:
        write_chunk(self.place, spec, (index,), chunk, self.fsync)
