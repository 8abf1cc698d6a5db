"""The numbers of a run as zarr arrays, which are copies of what its commit records say.

The arrays let anybody read the numbers with zarr or xarray, and save Roundweave from reading many records. A chunk
holds the numbers of a block of rounds. A small file, `KEY`, says up to which round the copies are complete; it is
written once they are synced. Later rounds are read from their records, and so is every block with a missing or
damaged chunk.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from roundweave.storage.errors import StoreDamaged, unless_damaged
from roundweave.storage.hierarchy.schema import METRIC_ROWS, NUMBERS, REPORTED, Schema
from roundweave.storage.hierarchy.zarr_format import (
    LARGEST,
    empty_chunk,
    read_chunk,
    replace_documents,
    write_chunk,
)
from roundweave.storage.parsing import Round, mistakes_as
from roundweave.storage.places.base import together
from roundweave.storage.rounds.commits import Commit, metric_problem, numbers_of
from roundweave.storage.rounds.log import CommitLog
from roundweave.storage.values.digests import sealed, unsealed

KEY = "commits/copied.json"

COLUMNS = {"seconds", "examples", "accepted", "refused", "absent", "left_out"}
"""The columns of each run's history besides scores and metrics."""


@dataclass(frozen=True)
class Copied:
    """Says up to which `round` the arrays are complete copies, with the `chain` of its record.

    `since` has the first block of rounds that each array has, by path.
    """

    round: Round
    chain: str
    since: dict[str, Round]


NOTHING_COPIED = Copied(-1, "", {})


def read_statement(log: CommitLog) -> Copied:
    """The content of the file, even if the record that it names is missing; raises `StoreDamaged`."""
    content = log.place.read(KEY, most=LARGEST)
    if content is None:
        return NOTHING_COPIED
    with mistakes_as(lambda error: StoreDamaged(f"{log.place}/{KEY}: it is not what was written")):
        copied = unsealed(Copied, content)
    if not all(path in NUMBERS or _is_reported(path) for path in copied.since):
        raise StoreDamaged(f"{log.place}/{KEY}: it names what is no array of numbers")
    return copied


def read_copied(log: CommitLog) -> Copied:
    """The last round that the arrays copy; raises `StoreDamaged` for a damaged file, or one of another history.

    `NOTHING_COPIED` where it is missing, or where the record that it names is damaged or lost.
    """
    copied = read_statement(log)
    link = log.whole(copied.round)
    if link is not None and link.chain != copied.chain:
        raise StoreDamaged(f"{log.place}/{KEY}: it belongs to another history")
    return copied if link else NOTHING_COPIED


def _is_reported(path: str) -> bool:
    group, _, name = path.partition("/")
    return group in REPORTED and metric_problem(name) is None


def put(
    chunks: dict[str, np.ndarray], schema: Schema, commits: Iterable[Commit], index: int
) -> dict[str, np.ndarray]:
    """Copy the numbers of the commits of a block of rounds into its chunks, by array, and return these.

    Commits of other blocks are passed over, and new arrays are added.
    """
    for commit in (commit for commit in commits if commit.round // schema.block == index):
        row = commit.round % schema.block
        for path, number in {"committed": True, **numbers_of(commit)}.items():
            if path not in chunks:
                chunks[path] = empty_chunk(schema.number(path, 1))
            if isinstance(number, dict):
                chunks[path][row, list(number)] = list(number.values())
            else:
                chunks[path][row] = number
    return chunks


class History:
    """Reads the numbers of some rounds of a log, which ascend, as they are when this object is created."""

    def __init__(self, log: CommitLog, rounds: Sequence[int]) -> None:
        self.log = log
        self.schema = log.schema
        copied = unless_damaged(read_copied, log) or NOTHING_COPIED
        self._copied = copied if copied.round <= rounds[-1] else NOTHING_COPIED
        self._rounds = rounds
        self._later = self._read(self._copied.round + 1, rounds[-1] + 1)

    def paths(self) -> list[str]:
        """The paths of the arrays of all metrics and scores, sorted."""
        later = {path for commit in self._later for path in numbers_of(commit)}
        return sorted(path for path in later.union(self._copied.since) if path.partition("/")[0] in REPORTED)

    def names(self, group: str) -> list[str]:
        """The names of all ``metrics``, or of all ``scores`` besides the loss, sorted."""
        names = [path.removeprefix(f"{group}/") for path in self.paths() if path.startswith(f"{group}/")]
        return [name for name in names if group != "scores" or name not in ("loss", "left_out")]

    def blocks(self, paths: Collection[str] | None = None) -> Iterator[tuple[list[int], dict[str, np.ndarray]]]:
        """The committed rounds of each block with their numbers by array, (round,) or (round, partition).

        NaN stands for a number that a round does not have. Only arrays of these `paths` are read where given.
        """
        for index, rounds in groupby(self._rounds, lambda round: round // self.schema.block):
            chunks = self.block(index, paths)
            rows = {round: round % self.schema.block for round in rounds}
            committed = [round for round, row in rows.items() if chunks and chunks["committed"][row]]
            if committed:
                places = [rows[round] for round in committed]
                yield committed, {path: chunk[places] for path, chunk in chunks.items()}

    def block(self, index: int, paths: Collection[str] | None = None) -> dict[str, np.ndarray]:
        """The chunks of a block of rounds by array; empty where no record of the block is whole."""
        start = index * self.schema.block
        copied = start <= self._copied.round
        chunks = self._chunks(index, paths) if copied else {}
        commits = self._read(start, start + self.schema.block) if copied and not chunks else self._later
        return put(chunks, self.schema, commits, index)

    def _read(self, start: int, end: int) -> list[Commit]:
        """The whole records of the rounds from `start` to before `end`."""
        rounds = [round for round in self._rounds if start <= round < end]
        return [self.log.parsed(round, link) for round, link in self.log.links(rounds).items()]

    def _chunks(self, index: int, paths: Collection[str] | None) -> dict[str, np.ndarray]:
        """The stored chunks of a block by array; empty where any of them is missing or damaged."""
        rows, place = (index + 1) * self.schema.block, self.log.place
        since = (path for path, first in self._copied.since.items() if first <= index)
        wanted = (path for path in since if paths is None or path in (*paths, "committed"))
        specs = [self.schema.number(path, rows) for path in wanted]
        try:
            chunks = together(place, lambda spec: read_chunk(place, spec, (index,)), specs)
        except StoreDamaged:
            return {}
        stored = {spec.path: chunk for spec, chunk in zip(specs, chunks, strict=True) if chunk is not None}
        if len(stored) < len(specs) or "committed" not in stored:
            return {}
        # Rounds that were copied after the file was written are read from their records, which may be gone now.
        stored["committed"][max(self._copied.round + 1 - index * self.schema.block, 0) :] = False
        return stored


class Numbers:
    """Writes the arrays of numbers, with `rows` rows. `last` is the last round that was copied, -1 for none.

    The array of a metric or score begins with the block of rounds in which it was first reported.
    """

    def __init__(self, log: CommitLog, rows: int) -> None:
        self.log = log
        self.place = log.place
        self.schema = log.schema
        self.rows = rows
        self._chunks: dict[str, np.ndarray] = {}
        self._since: dict[str, int] = {}
        self.last = -1

    def catch_up(self) -> None:
        """Copy the records of the rounds after `last`; raises `StoreDamaged` for a damaged one."""
        self._copy(self.log.after(self.last))

    def rebuild(self, commits: Iterable[Commit]) -> None:
        """Write all arrays and their documents again from all records, and delete chunks that fit no record."""
        self.place.delete(KEY)
        self._chunks, self._since, self.last = {}, {}, -1
        written = self._copy(commits)
        paths = (f"{group}/{name}" for group in REPORTED for name in self.place.names(group))
        reported = set(filter(_is_reported, paths))
        for path in reported.union(NUMBERS) - {"round"}:
            if path in reported and path not in self._since:
                self.place.delete(path)
            for name in self.place.names(f"{path}/c"):
                if (path, name) not in written:
                    self.place.delete(f"{path}/c/{name}")
        self._describe()

    def seal(self, last: int) -> None:
        """Write down that rounds up to `last` are copied. Call this once everything written for them is synced."""
        if 0 <= last <= self.last:
            self.place.write(KEY, sealed(Copied(last, self.log.chain(last), dict(self._since))))

    def _describe(self) -> None:
        """Write the documents of all arrays. That of `commits`, which says how many rounds fit, comes last."""
        numbers = self.schema.numbers(self.rows)
        for start in range(0, self.rows, METRIC_ROWS):
            row = np.arange(start, start + METRIC_ROWS)
            write_chunk(self.place, numbers["round"], (start // METRIC_ROWS,), row)
        last = numbers.pop("commits")
        reported = [self.schema.number(path, self.rows) for path in self._since if path not in numbers]
        replace_documents(self.place, [*numbers.values(), *reported, last])

    def _copy(self, commits: Iterable[Commit]) -> set[tuple[str, str]]:
        """Write the numbers of commits; returns the chunks that were written, as (path of the array, name)."""
        written = set()
        for index, block in groupby(commits, lambda commit: commit.round // self.schema.block):
            if self.last // self.schema.block < index:
                self._chunks = {path: empty_chunk(self.schema.number(path, 1)) for path in self._since}
            for commit in block:
                put(self._chunks, self.schema, [commit], index)
                last = commit.round
            self._write(index)
            self.last = last
            written |= {(path, str(index)) for path in self._chunks}
        return written

    def _write(self, index: int) -> None:
        """Write the chunks of a block. `committed` comes last, so that a committed row has all its numbers."""

        def write(path: str) -> None:
            spec = self.schema.number(path, self.rows)
            if path not in self._since and path not in NUMBERS:
                # This replaces the document, since a power loss may have left an empty file under its name.
                replace_documents(self.place, [spec])
            write_chunk(self.place, spec, (index,), self._chunks[path])

        together(self.place, write, [path for path in self._chunks if path != "committed"])
        write("committed")
        self._since |= {path: index for path in self._chunks if path not in self._since}
