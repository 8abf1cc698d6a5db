"""The numbers of a run as zarr's arrays: copies of what its records say, a chunk of each for a block of rounds.

They are for those who read a run with zarr or xarray, and spare its own readers the records of many rounds. What
says up to which round they are whole copies is written once they are synced; later rounds are read from their
records, and so are all where anything is missing or damaged.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby

import numpy as np
from pydantic import TypeAdapter

from storage.errors import RoundMissing, StoreDamaged
from storage.hierarchy.chunks import empty_chunk, read_chunk, write_chunk
from storage.hierarchy.documents import LARGEST, replace_documents
from storage.hierarchy.schema import METRIC_ROWS, NUMBERS, REPORTED, Schema
from storage.parsing import Round, validated
from storage.places.together import together
from storage.rounds.commits import Commit, metric_problem, numbers_of
from storage.rounds.log import CommitLog
from storage.values.digests import json_digest

KEY = "commits/copied.json"


@dataclass(frozen=True)
class Copied:
    """Up to which round the arrays are copies, the chain of its record, and the first block that each has."""

    round: Round
    chain: str
    since: dict[str, Round] = field(default_factory=dict)
    digest: str = ""


COPIED = TypeAdapter(Copied)


def read_copied(log: CommitLog) -> Copied | None:
    """What says up to which round the arrays are copies; None where that is not of the history of this log."""
    try:
        copied = _parsed(log)
        return copied if copied and log.chain(copied.round) == copied.chain else None
    except (StoreDamaged, RoundMissing):
        return None


def check_copied(log: CommitLog) -> None:
    """Raise `StoreDamaged` for one of another history; of one whose record is damaged or lost nobody knows."""
    copied = _parsed(log)
    try:
        chain = copied and log.chain(copied.round)
    except (StoreDamaged, RoundMissing):
        return
    if copied and chain != copied.chain:
        raise StoreDamaged(f"{log.place}/{KEY}: it is of another history")


def _parsed(log: CommitLog) -> Copied | None:
    content = log.place.read(KEY, most=LARGEST)
    if content is None:
        return None
    try:
        copied = validated(COPIED, bytes(content))
        if bytes(content) == _content(copied) and all(map(_is_number, copied.since)):
            return copied
    except ValueError:
        pass
    raise StoreDamaged(f"{log.place}/{KEY}: it is not what was written")


def _content(copied: Copied) -> bytes:
    """What is stored, with the digest of what it says."""
    said = {"round": copied.round, "chain": copied.chain, "since": copied.since}
    return json.dumps(said | {"digest": json_digest(said)}).encode()


def _is_number(path: str) -> bool:
    return path in NUMBERS or _is_reported(path)


def _is_reported(path: str) -> bool:
    group, _, name = path.partition("/")
    return group in REPORTED and metric_problem(name) is None


def put(chunks: dict[str, np.ndarray], schema: Schema, commit: Commit) -> None:
    """Put what a commit says into the chunks of its block of rounds, by array; those that are missing are made."""
    row = commit.round % schema.block
    for path, told in {"committed": True, **numbers_of(commit)}.items():
        if path not in chunks:
            chunks[path] = empty_chunk(schema.number(path, 1))
        if isinstance(told, dict):
            chunks[path][row, list(told)] = list(told.values())
        else:
            chunks[path][row] = told


class History:
    """The numbers of those rounds of a log, which ascend, as they are when this is made."""

    def __init__(self, log: CommitLog, schema: Schema, rounds: Sequence[int]) -> None:
        self.log = log
        self.schema = schema
        copied = read_copied(log)
        self._copied = copied if copied and copied.round <= rounds[-1] else Copied(-1, "")
        self._rounds = rounds
        self._later = self._read([round for round in rounds if round > self._copied.round])

    def paths(self) -> list[str]:
        """The arrays of all metrics and scores that are told of, sorted."""
        told = {path for commit in self._later for path in numbers_of(commit)}
        return sorted(path for path in told.union(self._copied.since) if path.partition("/")[0] in REPORTED)

    def blocks(self) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
        """Rounds, block by block, and what they tell by array, (round,) or (round, partition); NaN for nothing."""
        for index, rounds in groupby(self._rounds, lambda round: round // self.schema.block):
            chunks = self.block(index)
            rows = {round: round % self.schema.block for round in rounds}
            told = [round for round, row in rows.items() if chunks and chunks["committed"][row]]
            if told:
                yield told, {path: chunk[[rows[round] for round in told]] for path, chunk in chunks.items()}

    def block(self, index: int) -> dict[str, np.ndarray]:
        """The chunks of a block of rounds by array; none where no record of it is whole."""
        start, end = index * self.schema.block, (index + 1) * self.schema.block
        chunks = self._chunks(index) if start <= self._copied.round else {}
        commits = self._later
        if not chunks and start <= self._copied.round:
            commits = self._read([round for round in self._rounds if start <= round < end])
        for commit in commits:
            if start <= commit.round < end:
                put(chunks, self.schema, commit)
        return chunks

    def _read(self, rounds: Sequence[int]) -> list[Commit]:
        """The records of these rounds that are whole."""
        return [self.log.parsed(round, link) for round, link in self.log.links(rounds).items()]

    def _chunks(self, index: int) -> dict[str, np.ndarray]:
        """The chunks of a block as they are stored, by array; none where one of them is missing or damaged."""
        specs = [
            self.schema.number(path, (index + 1) * self.schema.block)
            for path, first in self._copied.since.items()
            if first <= index
        ]
        try:
            chunks = together(self.log.place, lambda spec: read_chunk(self.log.place, spec, (index,)), specs)
        except StoreDamaged:
            return {}
        there = {spec.path: chunk for spec, chunk in zip(specs, chunks, strict=True) if chunk is not None}
        if len(there) < len(specs) or "committed" not in there:
            return {}
        # What was copied later is read from its records, which may have been damaged or taken away since.
        there["committed"][max(self._copied.round + 1 - index * self.schema.block, 0) :] = False
        return there


class Numbers:
    """Writes the arrays of numbers, with so many rows; those of metrics and scores begin with their first one."""

    def __init__(self, log: CommitLog, schema: Schema, rows: int, fsync: bool = False) -> None:
        self.log = log
        self.place = log.place
        self.schema = schema
        self.rows = rows
        self.fsync = fsync
        self._chunks: dict[str, np.ndarray] = {}
        self._since: dict[str, int] = {}
        self.last = -1

    def catch_up(self) -> None:
        """Copy the records that came since; raises `StoreDamaged` for a damaged one."""
        self._copy(self.log.read(round) for round in self.log.rounds() if round > self.last)

    def rebuild(self, commits: Iterable[Commit]) -> None:
        """Write and describe all arrays anew from the records of all rounds, and delete what is of no record."""
        self.place.delete(KEY)
        self._chunks, self._since, self.last = {}, {}, -1
        written = self._copy(commits)
        there = (f"{group}/{name}" for group in REPORTED for name in self.place.names(group))
        reported = set(filter(_is_reported, there))
        for path in reported.union(NUMBERS) - {"round"}:
            if path in reported and path not in self._since:
                self.place.delete(path)
            for name in self.place.names(f"{path}/c"):
                if (path, name) not in written:
                    self.place.delete(f"{path}/c/{name}")
        self._describe()

    def seal(self, last: int) -> None:
        """Say that rounds up to a last one are copied, once all that was written of them is synced."""
        if 0 <= last <= self.last:
            copied = Copied(last, self.log.chain(last), dict(self._since))
            self.place.write(KEY, _content(copied), durable=self.fsync)

    def _describe(self) -> None:
        """Describe the arrays there are; `commits`, which tells how many rounds there are, comes last."""
        numbers = self.schema.numbers(self.rows)
        for start in range(0, self.rows, METRIC_ROWS):
            row = np.arange(start, start + METRIC_ROWS)
            write_chunk(self.place, numbers["round"], (start // METRIC_ROWS,), row)
        last = numbers.pop("commits")
        reported = [self.schema.number(path, self.rows) for path in self._since if path not in numbers]
        replace_documents(self.place, [*numbers.values(), *reported, last], self.fsync)

    def _copy(self, commits: Iterable[Commit]) -> set[tuple[str, str]]:
        """Write what commits say; the arrays that were written, with the names of their chunks."""
        written = set()
        for index, block in groupby(commits, lambda commit: commit.round // self.schema.block):
            if self.last // self.schema.block < index:
                self._chunks = {path: empty_chunk(self.schema.number(path, 1)) for path in self._since}
            for commit in block:
                put(self._chunks, self.schema, commit)
                last = commit.round
            self._write(index)
            self.last = last
            written |= {(path, str(index)) for path in self._chunks}
        return written

    def _write(self, index: int) -> None:
        """Write the chunks of a block; that rounds are committed comes last, when the others are there."""

        def write(path: str) -> None:
            spec = self.schema.number(path, self.rows)
            if path not in self._since and path not in NUMBERS:
                # Not created: a power loss may have left files without bytes here.
                replace_documents(self.place, [spec], self.fsync)
            write_chunk(self.place, spec, (index,), self._chunks[path], self.fsync)

        together(self.place, write, [path for path in self._chunks if path != "committed"])
        write("committed")
        self._since |= {path: index for path in self._chunks if path not in self._since}
