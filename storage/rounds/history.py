"""The numbers of a run by round, which commits can make anew: coordinates, bookkeeping, scores and metrics."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from storage.errors import StoreDamaged, UsageError
from storage.hierarchy.chunks import empty_chunk, read_chunk, write_chunk
from storage.hierarchy.documents import NAME, create_documents, replace_documents
from storage.hierarchy.schema import REPORTED, ROUND_ROWS, ArraySpec, Schema
from storage.places.together import together
from storage.rounds.commits import Commit
from storage.rounds.log import CommitLog

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
        self._written: dict[str, np.ndarray] = {}
        self._last: int | None = None

    def names(self, group: str) -> list[str]:
        """The metrics or the scores that there are, sorted."""
        return [name for name in self.place.names(group) if name != NAME]

    def arrays(self) -> dict[str, ArraySpec]:
        """All arrays that there are now, by path."""
        paths = [f"{group}/{name}" for group in REPORTED for name in self.names(group)]
        return self._arrays | {path: self.schema.reported(path, self.rows) for path in paths}

    def has(self, round: int) -> bool:
        """Whether the row of a round is there, and so the round is done."""
        index, row = divmod(round, self.schema.block)
        chunk = self._whole("committed", index)
        return chunk is not None and bool(chunk[row])

    def read(self, path: str, rows: int | None = None) -> np.ndarray:
        """The first rows of an array of numbers, (round,) or (round, partition); NaN where there is none."""
        return self.read_all([path], rows)[path]

    def read_all(
        self, paths: Iterable[str], rows: int | None = None, recorded: Sequence[int] | None = None
    ) -> dict[str, np.ndarray]:
        """The same of several arrays, by path; `recorded` are the rounds with a record, where they are known."""
        rows = self.rows if rows is None else rows
        behind = self._behind(self.log.rounds() if recorded is None else recorded)
        paths = list(paths)
        blocks = [self._chunks(paths, index) for index in range(-(-rows // self.schema.block))]
        tables = {path: np.concatenate([chunks[path] for chunks in blocks])[:rows] for path in paths}
        for path, table in tables.items():
            for commit in behind:
                if commit.round < rows:
                    row = rows_of(commit, self.schema.partitions)
                    table[commit.round] = row.get(path, empty_chunk(self._spec(path))[0])
        return tables

    def _behind(self, rounds: Sequence[int]) -> list[Commit]:
        """The records that have no row yet, as where a writer was killed in between."""
        if not rounds:
            return []
        empty = empty_chunk(self._spec("committed"))
        blocks = range(rounds[-1] // self.schema.block + 1)
        chunks = together(self.place, lambda index: self._whole("committed", index), blocks)
        told = np.concatenate([empty if chunk is None else chunk for chunk in chunks])
        return self._records([round for round in rounds if not told[round]])

    def add(self, commit: Commit, ours: bool) -> None:
        """Write the row of a commit, whose record is in the log; `ours` says that it was created just now."""
        index, row = divmod(commit.round, self.schema.block)
        # What this process wrote for the round before is what lies there: no other may have made a round since.
        if not ours or self._last != commit.round - 1 or row == 0:
            self._written.clear()
        self._last = None
        told = rows_of(commit, self.schema.partitions)
        unread = [path for path in told if path not in self._written]
        self._written |= self._chunks(unread, index) if row else {p: empty_chunk(self._spec(p)) for p in unread}

        def put(path: str) -> None:
            self._written[path][row] = told[path]
            self._write(self._described(path), index, self._written[path])

        *others, committed = told
        together(self.place, put, others)
        put(committed)
        self._last = commit.round if ours else None

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

    def rebuild(self, commits: Iterable[Commit]) -> None:
        """Make all numbers and documents anew from the records of all rounds, and delete all others."""
        told: dict[str, set[str]] = {path: set() for path in self._arrays.keys() - {"round", "commits"}}

        def write(item: tuple[tuple[str, int], np.ndarray]) -> None:
            (path, index), chunk = item
            self._write(self._described(path), index, chunk)

        chunks = self.told(commits)
        together(self.place, write, chunks.items())
        for path, index in chunks:
            told.setdefault(path, set()).add(str(index))
        for path in self.arrays().keys() - self._arrays.keys():
            self.place.delete(path)
        for path, indices in told.items():
            for untold in set(self.place.names(f"{path}/c")) - indices:
                self.place.delete(f"{path}/c/{untold}")
        self.describe()

    def told(self, commits: Iterable[Commit]) -> dict[tuple[str, int], np.ndarray]:
        """The chunks that records make, by array and index."""
        chunks: dict[tuple[str, int], np.ndarray] = {}
        for commit in commits:
            index, number = divmod(commit.round, self.schema.block)
            for path, row in rows_of(commit, self.schema.partitions).items():
                chunk = chunks.setdefault((path, index), empty_chunk(self._spec(path)))
                chunk[number] = row
        return chunks

    def _recorded(self, index: int) -> list[Commit]:
        """The records of a block of rounds."""
        return self._records([round for round in self.log.rounds() if round // self.schema.block == index])

    def _records(self, rounds: Sequence[int]) -> list[Commit]:
        """Those of the records of these rounds that are whole."""
        return [self.log.parsed(round, link) for round, link in self.log.links(rounds).items()]

    def _chunks(self, paths: Sequence[str], index: int) -> dict[str, np.ndarray]:
        """The chunks of a block of rounds as they are stored, else as the records have them."""
        stored = together(self.place, lambda path: self._whole(path, index), paths)
        chunks = {path: chunk for path, chunk in zip(paths, stored, strict=True) if chunk is not None}
        absent = [path for path in paths if path not in chunks]
        told = self.told(self._recorded(index)) if absent else {}
        return chunks | {path: told.get((path, index), empty_chunk(self._spec(path))) for path in absent}

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
