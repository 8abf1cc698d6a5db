"""The numbers of a run's rounds as columns, and as arrays for plain zarr and xarray, which nothing here reads."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import TYPE_CHECKING

import numpy as np

from roundweave.storage.errors import RoundMissing, StoreDamaged, UsageError, nearest
from roundweave.storage.hierarchy.schema import GROUPS, ROWS, ArraySpec, number_array
from roundweave.storage.hierarchy.zarr_format import NAME, empty_chunk, read_chunk, replace_documents, write_chunk
from roundweave.storage.places.base import Place, together
from roundweave.storage.rounds import packs
from roundweave.storage.rounds.commits import COLUMNS, ranking
from roundweave.storage.rounds.log import CommitLog

if TYPE_CHECKING:
    import pandas as pd


@dataclass(frozen=True)
class Numbers:
    """The numbers of ascending `rounds`: `columns` by path, float64 (round,), NaN if a round has none."""

    rounds: list[int]
    columns: dict[str, np.ndarray]

    @classmethod
    def read(cls, log: CommitLog, rounds: Sequence[int]) -> Numbers:
        """Return the numbers of a log's rounds, from the columns of its packs, or else from whole records."""
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
                parts.append((whole, packs.columns_of(log.parsed(round, links[round]) for round in whole)))

        def joined(path: str) -> np.ndarray:
            return np.concatenate([columns.get(path, np.full(len(rounds), np.nan)) for rounds, columns in parts])

        paths = sorted({path for _, columns in parts for path in columns})
        return cls([round for rounds, _ in parts for round in rounds], {path: joined(path) for path in paths})

    def names(self, group: str) -> list[str]:
        """Return the names of all ``metrics``, or of all ``scores`` besides the loss, sorted."""
        names = (path.removeprefix(f"{group}/") for path in self.columns if path.startswith(f"{group}/"))
        return [name for name in names if group != "scores" or name not in ("loss", "left_out")]

    def column(self, path: str) -> np.ndarray:
        """Return the numbers at a path; all NaN if no round has one."""
        return self.columns.get(path, np.full(len(self.rounds), np.nan))

    @property
    def scores(self) -> dict[str, np.ndarray]:
        """The loss and all other scores by name."""
        return {name: self.column(f"scores/{name}") for name in ("loss", *self.names("scores"))}

    def history(self) -> pd.DataFrame:
        """Return the table of `Run.history`, with a row for each committed round."""
        import pandas as pd

        columns = {**self.scores, "seconds": self.column("bookkeeping/seconds")}
        renamed = _columns(self.names("metrics"), {*columns} | COLUMNS)
        columns |= {column: self.column(f"metrics/{name}") for name, column in renamed.items()}
        paths = [
            *(f"bookkeeping/{name}" for name in ("examples", "accepted", "refused", "absent")),
            "scores/left_out",
        ]
        counts = {path.partition("/")[2]: self.column(path) for path in paths}
        whole = {name: np.nan_to_num(count).astype(int) for name, count in counts.items()}
        return pd.DataFrame({**columns, **whole}, pd.Index(self.rounds, name="round"))

    def totals(self) -> Totals:
        """Return the totals of a run; `last` has the scores of the last round with a loss, if any."""
        scored = np.flatnonzero(~np.isnan(self.column("scores/loss")))[-1:]
        last = {name: float(column[place]) for name, column in self.scores.items() for place in scored}
        seconds = dict(zip(self.rounds, self.column("bookkeeping/seconds").tolist(), strict=True))
        return Totals(seconds, int(np.nansum(self.column("bookkeeping/refused"))), last)

    def best(self, score: str, lowest: bool | None) -> int:
        """Return the number of the first round with the best score.

        Arguments and errors are those of `Run.best`.
        """
        name, least = ranking(score) if isinstance(score, str) else (score, True)
        if (column := self.scores.get(name)) is None:
            hint = nearest(name, self.scores, f"there are {', '.join(self.scores)}")
            raise UsageError(f"no score {name!r}; {hint}")
        left_out = np.nan_to_num(self.column("scores/left_out"))
        scored = np.flatnonzero(~np.isnan(column))
        if not len(scored):
            raise RoundMissing(f"no round has the score {name}")
        scored = scored[left_out[scored] == left_out[scored].min()]  # scores of fewer examples do not compare
        best = (np.argmin if (least if lowest is None else lowest) else np.argmax)(column[scored])
        return self.rounds[int(scored[best])]

    def chunks(self, rows: int) -> Iterator[tuple[ArraySpec, int, np.ndarray]]:
        """Yield the chunks of the arrays of `rows` rows that show the numbers, `committed` last.

        Chunks of NaN alone are left out.
        """
        columns = {**self.columns, "committed": np.full(len(self.rounds), True)}
        for index, places in groupby(range(len(self.rounds)), lambda place: self.rounds[place] // ROWS):
            at = list(places)
            for path, column in columns.items():
                chunk = empty_chunk(spec := number_array(path, rows))
                chunk[[self.rounds[place] % ROWS for place in at]] = column[at]
                if not np.isnan(column[at]).all():
                    yield spec, index, chunk


@dataclass(frozen=True)
class Totals:
    """The seconds of each round, the number of all refused updates, and the `last` scores by name."""

    seconds: Mapping[int, float]
    refused: int
    last: Mapping[str, float]


BOOKKEEPING = {"seconds", "weight", "accepted", "map_seconds"}
"""The names of bookkeeping arrays. A metric with such a name is another number, so its column is renamed."""


def _columns(metrics: Sequence[str], columns: set[str]) -> dict[str, str]:
    """Return the column of each metric: its name, with ``map_`` before it as often as the name is taken."""
    renamed = [name for name in metrics if name in columns | BOOKKEEPING]
    named = {name: name for name in metrics if name not in renamed}
    for name in renamed:
        column = f"map_{name}"
        while column in columns | set(named.values()):
            column = f"map_{column}"
        named[name] = column
    return named


def show(log: CommitLog, rounds: Sequence[int], rows: int, known: bool) -> None:
    """Write the numbers of rounds, and of all others in their blocks, as arrays of `rows` rows.

    Everything that is not of these rounds is deleted, unless it is `known` what else the arrays show.
    """
    place, numbers, written = log.place, Numbers.read(log, rounds), set[tuple[str, str]]()
    for index in range(0 if known else -(-rows // ROWS)):
        write_chunk(place, number_array("round", rows), (index,), round_numbers(index))
    specs = {path: number_array(path, rows) for path in ("round", "committed", *numbers.columns, "commits")}
    replace_documents(place, specs.values())  # the document of `commits`, the number of rounds, comes last
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
    """Return a chunk of the coordinate `round`."""
    return np.arange(index * ROWS, (index + 1) * ROWS)


def shown_rounds(place: Place, rows: int) -> set[int]:
    """Return the rounds that the array `committed` of so many rows shows. Raises `StoreDamaged`."""
    spec, shown = number_array("committed", rows), set[int]()
    for index in range(-(-rows // ROWS)):
        if (chunk := read_chunk(place, spec, (index,))) is not None:
            shown.update(index * ROWS + int(row) for row in np.flatnonzero(chunk))
    if 0 not in shown:
        raise StoreDamaged(f"{place}/committed: it lacks the initial state, which each run has")
    return shown
