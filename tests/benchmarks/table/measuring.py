"""Contenders by turns, and what comes of it: medians, and ratios of readings of one turn."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import product

from tests.benchmarks.table.errors import NoReading
from tests.benchmarks.table.processes import Readings
from tests.benchmarks.table.rows.base import Contender, Row

Read = Callable[[Contender], Readings]


@dataclass(frozen=True)
class Measured:
    """A row with the readings of each turn, by contender, and why some have none."""

    row: Row
    turns: tuple[Mapping[str, Readings], ...]
    missing: Mapping[str, str] = field(default_factory=dict)

    def values(self, contender: str, reading: str) -> list[float]:
        """What was read of a contender, turn by turn."""
        return [turn[contender][reading] for turn in self.turns if contender in turn]


@dataclass(frozen=True)
class Ours:
    """One of ours beside a peer: its median, and the median, lowest and highest ratio of a turn."""

    median: float
    ratio: float | None
    lowest: float | None
    highest: float | None


@dataclass(frozen=True)
class Line:
    """One peer and all of ours in one reading; `missing` says why there is no median, or none of some of ours."""

    row: str
    title: str
    reading: str
    peer: str
    median: float | None
    ours: Mapping[str, Ours]
    target: float
    missing: Mapping[str, str]


def measure(row: Row, read: Read, repeats: int, seconds: float) -> Measured:
    """Read all contenders by turns; after so many seconds no further turn begins. Who fails is not asked again."""
    turns: list[dict[str, Readings]] = []
    missing: dict[str, str] = {}
    began = time.monotonic()
    while len(turns) < repeats and (not turns or time.monotonic() - began < seconds):
        turns.append({})
        for contender in row.contenders:
            if contender.name in missing:
                continue
            try:
                turns[-1][contender.name] = read(contender)
            except NoReading as error:
                missing[contender.name] = str(error)
    return Measured(row, tuple(turns), missing)


def lines(measured: Measured) -> Iterator[Line]:
    """A line for each reading, peer, and what ours stores."""
    row, missing = measured.row, measured.missing
    keeps = dict.fromkeys(each.keep for each in row.ours)
    for reading, peer, keep in product(row.readings, row.peers, keeps):
        values = measured.values(peer.name, reading)
        names = {each.executor or each.name: each.name for each in row.ours if each.keep == keep}
        ours = {name: _beside(measured, each, peer.name, reading) for name, each in names.items()}
        yield Line(
            f"{row.name}, {keep}" if keep else row.name,
            row.title,
            row.readings[reading],
            peer.name,
            statistics.median(values) if values else None,
            {name: each for name, each in ours.items() if each},
            row.target(reading, keep, peer.name),
            {name: missing[name] for name in (peer.name, *names.values()) if name in missing},
        )


def _beside(measured: Measured, ours: str, peer: str, reading: str) -> Ours | None:
    values = measured.values(ours, reading)
    if not values:
        return None
    both = [turn for turn in measured.turns if ours in turn and peer in turn]
    ratios = [turn[ours][reading] / turn[peer][reading] for turn in both]
    spread = (statistics.median(ratios), min(ratios), max(ratios)) if ratios else (None, None, None)
    return Ours(statistics.median(values), *spread)
