"""What is recorded of a run's examples, column by column, and how far it differs from that of another run."""

from __future__ import annotations

import json
import math
from bisect import bisect_left, bisect_right
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, field
from itertools import accumulate
from typing import Any

from roundweave.storage.errors import StoreDamaged, cut
from roundweave.storage.parsing import Count, mistakes_as, parse
from roundweave.storage.places.base import Place
from roundweave.storage.values.hashing import bytes_digest

KEY = "commits/columns.json"

LARGEST_COLUMNS = 1 << 28
"""The most bytes of a record of columns."""

INFINITE = 0x7FF0
"""The bin of infinity."""

RARE = 7
"""A category of which fewer are expected may be absent by chance: of so many in one case of a thousand."""

MOVED, MUCH = 0.1, 0.25
"""From these indices on a column has moved, or moved much, by the usual bounds (Siddiqi 2006)."""

ORDER = ("new", "gone", "moved much", "moved", "stable")
"""What may become of a column."""

REFUSED = ORDER[:3]
"""That for which a run may be rejected."""


@dataclass(frozen=True)
class Column:
    """How often each value of a column occurs in `examples` that were looked at; `missing` are NaN.

    Labels are counted by `categories`, and numbers in `bins` of a grid that all runs share, so that the bins of
    parts add up exactly (as in DDSketch: Masson, Rim, Lee 2019). A bin is the sign, the exponent and the first
    four bits of the fraction of a float64: there are sixteen to an octave, and each whole number below 32 has its
    own. `mean` and `deviation` are of the `finite` numbers; 0 where there are none.
    """

    dtype: str
    examples: Count
    missing: Count = 0
    bins: dict[int, Count] = field(default_factory=dict)
    categories: dict[str, Count] = field(default_factory=dict)
    mean: float = 0.0
    deviation: float = 0.0
    finite: Count = 0

    @property
    def values(self) -> int:
        """How many values were counted, those missing included; at least 1."""
        return max(1, self.missing + sum(self.bins.values()) + sum(self.categories.values()))

    def joined(self, other: Column) -> Column:
        """The column of the examples of both."""
        finite, apart = self.finite + other.finite, other.mean - self.mean
        mine, its = (each.finite / max(1, finite) for each in (self, other))
        spreads = self.deviation * math.sqrt(mine), other.deviation * math.sqrt(its), apart * math.sqrt(mine * its)
        bins = dict(Counter(self.bins) + Counter(other.bins))
        categories = dict(Counter(self.categories) + Counter(other.categories))
        counts = (self.examples + other.examples, self.missing + other.missing, bins, categories)
        return Column(self.dtype, *counts, self.mean + apart * its, math.hypot(*spreads), finite)

    def __str__(self) -> str:
        """The moments, or the share of each category, and of what is missing."""
        total = self.values
        shown = cut([f"{name} {count / total:.1%}" for name, count in self.categories.items()])
        shown += [f"{self.mean:.4g} ± {self.deviation:.3g}"] if self.finite else []
        return ", ".join([*shown, *([f"{self.missing / total:.1%} missing"] if self.missing else [])])


@dataclass(frozen=True)
class ColumnDrift:
    """What became of a column, or of a category of it: ``new``, ``gone``, ``moved much``, ``moved`` or ``stable``.

    `psi` is the population stability index, None of what is new or gone. `before` and `after` are the moments, or
    the share of the category, or of each.
    """

    column: str
    what: str
    psi: float | None = None
    before: str = ""
    after: str = ""

    def __str__(self) -> str:
        if self.psi is None:
            return f"{self.column} is {self.what} ({self.before or self.after})"
        return f"{self.column} {self.what}, psi {self.psi:.3g}: {self.before} -> {self.after}"


@dataclass(frozen=True)
class ColumnsRecord:
    """The columns of a run's examples by name, and how they differ from those of its parent; None if not known.

    `refusals` has a line for each column for which the run is rejected.
    """

    columns: dict[str, Column] = field(default_factory=dict)
    drift: list[ColumnDrift] | None = None
    refusals: list[str] = field(default_factory=list)

    def content(self) -> bytes:
        """The record as it is stored, whose digest is in the run's attributes; empty without columns."""
        return json.dumps(asdict(self)).encode() if self.columns else b""

    @property
    def lines(self) -> list[str]:
        """A line for each column that is not stable."""
        return [str(each) for each in self.drift or () if each.what != ORDER[-1]]


def read_columns(place: Place, attributes: Mapping[str, Any]) -> ColumnsRecord | None:
    """What a run with these attributes recorded, None if nothing; raises `StoreDamaged`."""
    if not (digest := attributes.get("columns")):
        return None
    content = place.read(KEY, most=LARGEST_COLUMNS)
    with mistakes_as(lambda error: StoreDamaged(f"{place}/{KEY}: {error}; restore the file from a copy")):
        if content is None or bytes_digest(content) != digest:
            raise ValueError("it is not what was written")
        return parse(ColumnsRecord, bytes(content))


def drifted(before: Mapping[str, Column], after: Mapping[str, Column]) -> list[ColumnDrift]:
    """What became of the columns of some examples in other ones, what matters most first."""
    found = list[ColumnDrift]()
    for name in {**before, **after}:
        old, new = before.get(name), after.get(name)
        if old and new and bool(old.categories) == bool(new.categories):
            found += _changes(name, old, new)
            continue
        found += [ColumnDrift(name, "gone", before=str(old))] if old else []
        found += [ColumnDrift(name, "new", after=str(new))] if new else []
    return sorted(found, key=lambda each: (ORDER.index(each.what), -(each.psi or 0)))


def _changes(name: str, old: Column, new: Column) -> Iterator[ColumnDrift]:
    """What became of a column's categories, and how far it has moved, if farther than chance alone would move it.

    By chance the index is distributed as chi squared, times the sum of the inverse sizes of the samples (Yurdakul
    2018): its mean and three deviations are hardly exceeded.
    """
    before, after, rare = _shares(old, old), _shares(old, new), RARE / new.values
    for category in {**old.categories, **new.categories}:
        if category not in before:
            yield ColumnDrift(f"{name} {category!r}", "new", after=f"{after[category]:.1%}")
        elif category not in after and before[category] >= rare:
            yield ColumnDrift(f"{name} {category!r}", "gone", before=f"{before[category]:.1%}")
    sizes, freedom = [max(1, each.examples) for each in (old, new)], max(1, len({**before, **after}) - 1)
    psi = stability_index(before, after, 0.5 / min(sizes))
    chance = (1 / sizes[0] + 1 / sizes[1]) * (freedom + 3 * math.sqrt(2 * freedom))
    what = ORDER[4 if psi < max(MOVED, chance) else 3 if psi < MUCH else 2]
    yield ColumnDrift(name, what, psi, str(old), str(new))


def _shares(before: Column, column: Column) -> dict[Any, float]:
    """The shares of a column's categories, or deciles of what was `before`; -1 and 10 are below and above these.

    The decile is that of the middle of a value's ranks, as many values may be equal. None is what is missing.
    """
    keys, total = sorted(before.bins), column.values
    ends = [0, *accumulate(before.bins[key] for key in keys)]
    counts = Counter[Any](column.categories) + Counter({None: column.missing})
    for key, count in column.bins.items():
        first, last = ends[bisect_left(keys, key)], ends[bisect_right(keys, key)]
        counts[10 * (first + last) // (2 * ends[-1]) if last else -1] += count
    return {place: count / total for place, count in counts.items()}


def stability_index(before: Mapping[Any, float], after: Mapping[Any, float], least: float) -> float:
    """The population stability index: the sum of (a - b) ln(a / b) over the shares b before and a after.

    A share is taken for at least `least`, such as half an example, as an empty bin would make it infinite.
    """
    both = [[max(least, each.get(place, 0.0)) for each in (before, after)] for place in {**before, **after}]
    return sum((a - b) * math.log(a / b) for b, a in both)
