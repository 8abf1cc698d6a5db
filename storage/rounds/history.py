"""The numbers of a run by round, which commits can make anew: coordinates, bookkeeping, scores and metrics."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np

from storage.errors import StoreDamaged
from storage.hierarchy.chunks import empty_chunk, read_chunk, stream_chunk
from storage.hierarchy.documents import replace_documents
from storage.hierarchy.schema import REPORTED, ROUND_ROWS, ArraySpec, Schema
from storage.memory import check_memory
from storage.parsing import MOST_TOLD
from storage.places.together import together
from storage.rounds.commits import Commit, metric_problem, numbers_digest, rows_of, width_of
from storage.rounds.log import CommitLog
from storage.rounds.widths import as_stored, narrow, widened


class History:
    """The arrays of numbers, for so many rows.

    Those of metrics and scores come into being with their first number. Chunks are written when there is something
    to say. What is missing, damaged or behind is read as the records in the log have it, and all that is read must
    be what the last of them vouches for.
    """

    def __init__(self, log: CommitLog, schema: Schema, rows: int, fsync: bool = False) -> None:
        self.log = log
        self.place = log.place
        self.schema = schema
        self.rows = rows
        self.fsync = fsync
        self._arrays = schema.history(rows)
        self._written: dict[str, np.ndarray] = {}
        self._unwritten: set[tuple[str, int]] = set()
        self._last: int | None = None

    def names(self, group: str) -> list[str]:
        """The metrics or the scores that there are, sorted."""
        return [name for name in self.place.names(group) if metric_problem(name) is None]

    def arrays(self) -> dict[str, ArraySpec]:
        """All arrays that there are now, by path."""
        paths = [f"{group}/{name}" for group in REPORTED for name in self.names(group)]
        return self._arrays | {path: self.schema.reported(path, self.rows) for path in paths}

    def has(self, round: int) -> bool:
        """Whether the row of a round is there, and so the round is done."""
        index, row = divmod(round, self.schema.block)
        chunk = self._whole("committed", index)
        return chunk is not None and bool(chunk[row])

    def read(self, rows: int | None = None, recorded: Sequence[int] | None = None) -> dict[str, np.ndarray]:
        """The first rows of all numbers, (round,) or (round, partition), by path; NaN where there is none.

        Partitions after the last one of which anything is told are left out. `recorded` are the rounds with a
        record, where they are known.
        Raises `StoreDamaged` where they are not what the records tell; a lost round has no numbers.
        """
        rows = self.rows if rows is None else rows
        recorded = [round for round in (self.log.rounds() if recorded is None else recorded) if round < rows]
        # What is behind comes first: a writer that is at work may make arrays and rows meanwhile.
        behind = self._behind(recorded)
        tables = self._stored(rows, recorded, max(map(width_of, behind), default=0))
        for commit in behind:
            self._fill(tables, commit)
        lost = np.ones(rows, bool)
        for stretch in _stretches(recorded):
            lost[self._vouched(tables, stretch)] = False
        for table in tables.values():
            table[lost] = np.nan
        return tables

    def _stored(self, rows: int, recorded: Sequence[int], width: int) -> dict[str, np.ndarray]:
        """The first rows of numbers as they lie there, by path; of so many partitions at least."""
        paths, block, blocks = [path for path in self.arrays() if "/" in path], self.schema.block, {}
        for index in dict.fromkeys(round // block for round in recorded):
            blocks[index] = {path: narrow(chunk) for path, chunk in self._chunks(paths, index, recorded).items()}
            width = max(width, *(chunk.shape[-1] for chunk in blocks[index].values() if chunk.ndim > 1))
            check_memory(8 * len(blocks) * min(block, rows) * width * len(paths), f"the numbers of {self.place}")
        check_memory(8 * rows * width * len(paths), f"the numbers of {self.place}")
        partitions = {path: (width,) * (len(self._spec(path).shape) - 1) for path in paths}
        tables = {path: np.full((rows, *partitions[path]), np.nan) for path in paths}
        for index, chunks in blocks.items():
            for path, chunk in chunks.items():
                place = tables[path][index * block : (index + 1) * block]
                place[:] = widened(chunk, width)[: len(place)]
        return tables

    def _fill(self, tables: dict[str, np.ndarray], commit: Commit) -> None:
        """Make the row of a commit what it says, also of what has no array yet."""
        rows, width = tables["bookkeeping/accepted"].shape
        told = rows_of(commit, width)
        for path in told.keys() - tables.keys() - {"committed"}:
            tables[path] = np.full((rows, *np.shape(told[path])), np.nan)
        for path, table in tables.items():
            table[commit.round] = told.get(path, np.nan)

    def _vouched(self, tables: dict[str, np.ndarray], rounds: Sequence[int]) -> list[int]:
        """Which of consecutive rounds with records have the rows that the last whole record vouches for."""
        last = self.log.last_whole(rounds)
        if last is None:
            return []
        start, digest = 0, ""
        if rounds[0] > 0:
            # Of the rows before these, which went into the digest, some are lost; so this one's digest is taken.
            start, link = self.log.first_whole(rounds) or last
            self._fill(tables, self.log.parsed(start, link))
            digest = link.numbers
        end, link = last
        for round in range(start + (rounds[0] > 0), end + 1):
            digest = numbers_digest(digest, {path: table[round] for path, table in tables.items()})
        if digest != link.numbers:
            raise StoreDamaged(
                f"{self.place}: its numbers by round are not what its records tell; `roundweave verify` names "
                "them, `roundweave resume` makes them anew"
            )
        return list(range(start, end + 1))

    def _behind(self, rounds: Sequence[int]) -> list[Commit]:
        """The records that have no row yet, as where a writer was killed in between."""
        if not rounds:
            return []
        empty, block = empty_chunk(self._spec("committed")), self.schema.block
        blocks = list(dict.fromkeys(round // block for round in rounds))
        chunks = together(self.place, lambda index: self._whole("committed", index), blocks)
        told = {index: empty if chunk is None else chunk for index, chunk in zip(blocks, chunks, strict=True)}
        return self._records([round for round in rounds if not told[round // block][round % block]])

    def add(self, commit: Commit, ours: bool, more: bool = False) -> None:
        """Write the row of a commit, whose record is in the log; `ours` says that it was created just now.

        Where `more` come at once, it is written with the last of them: a reader has it from the record until then.
        """
        index, row = divmod(commit.round, self.schema.block)
        # What this process wrote for the round before is what lies there: no other may have made a round since.
        if not ours or self._last != commit.round - 1 or row == 0:
            self.settle()
            self._written.clear()
        self._last = None
        left_behind = self._left_behind(index, row) if row and not self._written else []
        for each in (*left_behind, commit):
            self._put(rows_of(each, width_of(each)), index, each.round % self.schema.block)
        if not more:
            self.settle()
        self._last = commit.round if ours else None

    def _left_behind(self, index: int, row: int) -> list[Commit]:
        """The commits before a row of a block whose rows a killed writer did not come to."""
        committed = self._chunks(["committed"], index)["committed"]
        rounds = index * self.schema.block + np.flatnonzero(~committed[:row].astype(bool))
        return self._records([int(round) for round in rounds if self.log.has(int(round))])

    def _put(self, told: Mapping[str, Any], index: int, row: int) -> None:
        """Have numbers written to their row of a block; what else is in it stays, or is nothing yet."""
        unread = [path for path in told if path not in self._written]
        self._written |= self._chunks(unread, index) if row else {p: empty_chunk(self._spec(p), 0) for p in unread}
        for path, numbers in told.items():
            chunk = self._written[path] = widened(self._written[path], np.size(numbers))
            chunk[row] = numbers if chunk.ndim == 1 else widened(numbers[None], chunk.shape[1])[0]
        self._unwritten |= {(path, index) for path in told}

    def settle(self) -> None:
        """Write the rows that waited for more; that rounds are committed comes last."""

        def put(chunk: tuple[str, int]) -> None:
            path, index = chunk
            self._write(self._described(path), index, self._written[path])

        others = [chunk for chunk in self._unwritten if chunk[0] != "committed"]
        together(self.place, put, others)
        for chunk in self._unwritten.difference(others):
            put(chunk)
        self._unwritten.clear()

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
        """The chunks that records make, by array and index, of the partitions that they tell of."""
        chunks: dict[tuple[str, int], np.ndarray] = {}
        commits = list(commits)
        width = max(map(width_of, commits), default=0)
        for commit in commits:
            index, number = divmod(commit.round, self.schema.block)
            for path, row in rows_of(commit, width).items():
                if (path, index) not in chunks:
                    chunks[path, index] = empty_chunk(self._spec(path), width)
                chunks[path, index][number] = row
        return chunks

    def _recorded(self, index: int, recorded: Sequence[int]) -> list[Commit]:
        """The records of a block of rounds."""
        start, end = (bisect_left(recorded, at * self.schema.block) for at in (index, index + 1))
        return self._records(recorded[start:end])

    def _records(self, rounds: Sequence[int]) -> list[Commit]:
        """Those of the records of these rounds that are whole."""
        return [self.log.parsed(round, link) for round, link in self.log.links(rounds).items()]

    def _chunks(
        self, paths: Sequence[str], index: int, recorded: Sequence[int] | None = None
    ) -> dict[str, np.ndarray]:
        """The chunks of a block of rounds as they are stored, else as the records have them."""
        stored = together(self.place, lambda path: self._whole(path, index), paths)
        chunks = {path: chunk for path, chunk in zip(paths, stored, strict=True) if chunk is not None}
        absent = [path for path in paths if path not in chunks]
        recorded = self.log.rounds() if absent and recorded is None else recorded or []
        told = self.told(self._recorded(index, recorded)) if absent else {}
        return chunks | {path: told.get((path, index), empty_chunk(self._spec(path), 0)) for path in absent}

    def _whole(self, path: str, index: int) -> np.ndarray | None:
        """A chunk as it is stored; None where it is missing, damaged, or wider than any record could be."""
        spec = self._spec(path)
        if spec.chunks[-1] > MOST_TOLD:
            return None
        try:
            return read_chunk(self.place, spec, (index,))
        except StoreDamaged:
            return None

    def _spec(self, path: str) -> ArraySpec:
        return self._arrays.get(path) or self.schema.reported(path, self.rows)

    def _described(self, path: str) -> ArraySpec:
        """An array of numbers, which is there from now on."""
        if path not in self._arrays:
            spec = self.schema.reported(path, self.rows)
            # Not created: a power loss may have left files without bytes here. Written once, so synced at once.
            replace_documents(self.place, [spec], fsync=True)
            self._arrays[path] = spec
        return self._arrays[path]

    def _write(self, spec: ArraySpec, index: int, chunk: np.ndarray) -> None:
        stream_chunk(self.place, spec, (index,), as_stored(chunk, spec.chunks[-1]), self.fsync)


def _stretches(rounds: Sequence[int]) -> list[Sequence[int]]:
    """Ascending rounds, cut where one is missing."""
    cuts = [at for at, (one, other) in enumerate(pairwise(rounds), 1) if other > one + 1]
    return [rounds[start:end] for start, end in pairwise([0, *cuts, len(rounds)]) if start < end]
