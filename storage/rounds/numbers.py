"""The numbers of a run's rounds as columns; and as arrays for plain zarr and xarray, which nothing here reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby

import numpy as np

from roundweave.storage.errors import StoreDamaged
from roundweave.storage.hierarchy.schema import GROUPS, ROWS, ArraySpec, number_array
from roundweave.storage.hierarchy.zarr_format import NAME, empty_chunk, read_chunk, replace_documents, write_chunk
from roundweave.storage.places.base import Place, together
from roundweave.storage.rounds import packs
from roundweave.storage.rounds.commits import columns_of
from roundweave.storage.rounds.log import CommitLog


@dataclass(frozen=True)
class Numbers:
    """The numbers of ascending `rounds`: `columns` by path, float64 (round,), NaN where a round has none."""

    rounds: list[int]
    columns: dict[str, np.ndarray]

    @classmethod
    def read(cls, log: CommitLog, rounds: Sequence[int]) -> Numbers:
        """Those of the rounds of a log, from the columns of its packs, or else from whole records."""
        blocks = {first: list(same) for first, same in groupby(rounds, packs.first_of)}
        packed = dict(zip(blocks, together(log.place, log.columns, blocks), strict=True))
        links = log.links([round for first, same in blocks.items() if not packed[first] for round in same])
        parts = list[tuple[list[int], Mapping[str, Sequence[float] | np.ndarray]]]()
        for first, same in blocks.items():
            if columns := packed[first]:
                at = [round - first for round in same]
                parts.append((same, {path: np.array(column)[at] for path, column in columns.items()}))
            else:
                whole = [round for round in same if round in links]
                parts.append((whole, columns_of(log.parsed(round, links[round]) for round in whole)))

        def joined(path: str) -> np.ndarray:
            return np.concatenate([columns.get(path, np.full(len(rounds), np.nan)) for rounds, columns in parts])

        paths = sorted({path for _, columns in parts for path in columns})
        return cls([round for rounds, _ in parts for round in rounds], {path: joined(path) for path in paths})

    def names(self, group: str) -> list[str]:
        """The names of all ``metrics``, or of all ``scores`` besides the loss, sorted."""
        names = (path.removeprefix(f"{group}/") for path in self.columns if path.startswith(f"{group}/"))
        return [name for name in names if group != "scores" or name not in ("loss", "left_out")]

    def column(self, path: str) -> np.ndarray:
        """The numbers at a path; all NaN where no round has one."""
        return self.columns.get(path, np.full(len(self.rounds), np.nan))

    def chunks(self, rows: int) -> Iterator[tuple[ArraySpec, int, np.ndarray]]:
        """The chunks of the arrays of `rows` rows that show the numbers, `committed` last; none of NaN alone."""
        columns = {**self.columns, "committed": np.full(len(self.rounds), True)}
        for index, places in groupby(range(len(self.rounds)), lambda place: self.rounds[place] // ROWS):
            at = list(places)
            for path, column in columns.items():
                chunk = empty_chunk(spec := number_array(path, rows))
                chunk[[self.rounds[place] % ROWS for place in at]] = column[at]
                if not np.isnan(column[at]).all():
                    yield spec, index, chunk


def show(log: CommitLog, rounds: Sequence[int], rows: int, known: bool) -> None:
    """Write the numbers of rounds, all of the blocks that they are in, as arrays of `rows` rows.

    Unless it is `known` what else arrays show, everything that is not of these rounds is deleted.
    """
    place, numbers, written = log.place, Numbers.read(log, rounds), set[tuple[str, str]]()
    for index in range(0 if known else -(-rows // ROWS)):
        write_chunk(place, number_array("round", rows), (index,), round_numbers(index))
    specs = {path: number_array(path, rows) for path in ("round", "committed", *numbers.columns, "commits")}
    replace_documents(place, specs.values())  # that of `commits`, which says how many rounds fit, comes last
    for spec, index, chunk in numbers.chunks(rows):
        write_chunk(place, spec, (index,), chunk)
        written.add((spec.path, str(index)))
    there = [f"{group}/{name}" for group in GROUPS for name in place.names(group) if name != NAME]
    for path in [] if known else [*there, "committed"]:
        if path not in specs:
            place.delete(path)
        for name in place.names(f"{path}/c"):
            if (path, name) not in written:
                place.delete(f"{path}/c/{name}")


def round_numbers(index: int) -> np.ndarray:
    """A chunk of the coordinate `round`."""
    return np.arange(index * ROWS, (index + 1) * ROWS)


def shown_rounds(place: Place, rows: int) -> set[int]:
    """The rounds of which the array `committed` of so many rows tells; raises `StoreDamaged`."""
    spec, shown = number_array("committed", rows), set[int]()
    for index in range(-(-rows // ROWS)):
        if (chunk := read_chunk(place, spec, (index,))) is not None:
            shown.update(index * ROWS + int(row) for row in np.flatnonzero(chunk))
    if 0 not in shown:
        raise StoreDamaged(f"{place}/committed: it tells nothing of the initial state, which each run has")
    return shown
