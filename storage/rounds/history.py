"""The numbers of a run by round, which commits can make anew: coordinates, bookkeeping, scores and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from storage.errors import StoreDamaged, UsageError
from storage.hierarchy.chunks import empty_chunk, read_chunk, write_chunk
from storage.hierarchy.documents import NAME, create_documents, replace_documents
from storage.hierarchy.schema import METRIC_ROWS, REPORTED, ROUND_ROWS, ArraySpec, Schema
from storage.rounds.commits import Commit, CommitLog

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


class History:
    """The arrays of numbers, for so many rows.

    Those of metrics and scores come into being with their first number. Chunks are written when there is something
    to say. What is missing, damaged or behind is read as the records in the log have it.
    """

    def __init__(self, log: CommitLog, schema: Schema, rows: int, fsync: bool = False) -> None:
        self.log = log
        self.place = log.place
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

    def has(self, round: int) -> bool:
        """Whether the row of a round is there, and so the round is done."""
        index, row = divmod(round, METRIC_ROWS)
        chunk = self._whole("committed", index)
        return chunk is not None and bool(chunk[row])

    def read(self, path: str, rows: int | None = None) -> np.ndarray:
        """The first rows of an array of numbers, (round,) or (round, partition); NaN where there is none."""
        return self.read_all([path], rows)[path]

    def read_all(self, paths: Iterable[str], rows: int | None = None) -> dict[str, np.ndarray]:
        """The same of several arrays, by path."""
        rows = self.rows if rows is None else rows
        recorded = {index: self._rows(index, self._recorded(index)) for index in self._behind()}
        blocks = range(-(-rows // METRIC_ROWS))

        def chunk(path: str, index: int) -> np.ndarray:
            return self._filled(path, recorded[index]) if index in recorded else self._chunk(path, index)

        return {path: np.concatenate([chunk(path, index) for index in blocks])[:rows] for path in paths}

    def _behind(self) -> set[int]:
        """The blocks of rounds in which a record has no row yet, as where its writer was killed in between."""
        rounds = np.asarray(self.log.rounds(), int)
        chunks = [self._whole("committed", index) for index in range(rounds.max(initial=0) // METRIC_ROWS + 1)]
        empty = empty_chunk(self._spec("committed"))
        told = np.concatenate([empty if chunk is None else chunk for chunk in chunks])
        return set(rounds[~told[rounds]] // METRIC_ROWS)

    def add(self, commit: Commit) -> None:
        """Write the row of a commit, whose record is in the log."""
        index, row = divmod(commit.round, METRIC_ROWS)
        for path, value in rows_of(commit, self.schema.partitions).items():
            chunk = self._chunk(path, index) if row else empty_chunk(self._spec(path))
            chunk[row] = value
            self._write(self._described(path), index, chunk)

    def write_rounds(self) -> None:
        """Write the coordinate of rounds, which is the only array that is written ahead."""
        for start in range(0, self.rows, ROUND_ROWS):
            self._write(self._arrays["round"], start // ROUND_ROWS, np.arange(start, start + ROUND_ROWS))

    def describe(self) -> None:
        """Describe the arrays that there are, with as many rows as this history has; `commits` comes last."""
        self.write_rounds()
        arrays = self.arrays()
        last = arrays.pop("commits")
        replace_documents(self.place, [*arrays.values(), last], self.fsync)

    def rebuild(self) -> None:
        """Make all numbers and documents anew from the records, which must be whole, and delete all others."""
        told: dict[str, set[str]] = {path: set() for path in self._arrays.keys() - {"round", "commits"}}
        for index in sorted({round // METRIC_ROWS for round in self.log.rounds()}):
            for path, chunk in self.told(index, self._recorded(index)).items():
                self._write(self._described(path), index, chunk)
                told.setdefault(path, set()).add(str(index))
        for path in self.arrays().keys() - self._arrays.keys():
            self.place.delete(path)
        for path, indices in told.items():
            for untold in set(self.place.names(f"{path}/c")) - indices:
                self.place.delete(f"{path}/c/{untold}")
        self.describe()

    def told(self, index: int, commits: Iterable[Commit]) -> dict[str, np.ndarray]:
        """What the records of a block of rounds make the chunks of this index, by array."""
        rows = self._rows(index, commits)
        return {path: self._filled(path, rows) for path in sorted({path for row in rows.values() for path in row})}

    def _recorded(self, index: int) -> list[Commit]:
        """The records of a block of rounds."""
        start = index * METRIC_ROWS
        rounds = [round for round in range(start, start + METRIC_ROWS) if self.log.has(round)]
        return [self.log.read(round) for round in self.log.whole(rounds)]

    def _rows(self, index: int, commits: Iterable[Commit]) -> dict[int, dict[str, Any]]:
        """What records say, by row of the chunks of this index."""
        start = index * METRIC_ROWS
        return {commit.round - start: rows_of(commit, self.schema.partitions) for commit in commits}

    def _filled(self, path: str, rows: Mapping[int, Mapping[str, Any]]) -> np.ndarray:
        """The chunk of an array in which these rows stand."""
        chunk = empty_chunk(self._spec(path))
        for number, row in rows.items():
            chunk[number] = row.get(path, chunk[number])
        return chunk

    def _chunk(self, path: str, index: int) -> np.ndarray:
        """A chunk as it is stored, else as the records have it."""
        chunk = self._whole(path, index)
        return self._filled(path, self._rows(index, self._recorded(index))) if chunk is None else chunk

    def _whole(self, path: str, index: int) -> np.ndarray | None:
        """A chunk as it is stored; None where it is missing or damaged."""
        try:
            return read_chunk(self.place, self._spec(path), (index,))
        except StoreDamaged:
            return None

    def _spec(self, path: str) -> ArraySpec:
        return self._arrays.get(path) or self.schema.reported(path, self.rows)

    def _described(self, path: str) -> ArraySpec:
        """An array of numbers, which is there from now on."""
        if path not in self._arrays:
            spec = self.schema.reported(path, self.rows)
            create_documents(self.place, [spec], fsync=self.fsync)
            self._arrays[path] = spec
        return self._arrays[path]

    def _write(self, spec: ArraySpec, index: int, chunk: np.ndarray) -> None:
        write_chunk(self.place, spec, (index,), chunk, self.fsync)
