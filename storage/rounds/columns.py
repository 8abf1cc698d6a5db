"""The record of a run's examples, column by column, and its differences from the record of another run."""

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
"""The least expected number of a category that cannot be absent by chance, but in one case of a thousand."""

MOVED, MUCH = 0.1, 0.25
"""The indices from which a column has moved, or moved much, by the usual bounds (Siddiqi 2006)."""

ORDER = ("new", "gone", "moved much", "moved", "stable")
"""The possible fates of a column, the worst first."""

REFUSED = ORDER[:3]
"""The fates for which a run may be rejected."""


@dataclass(frozen=True)
class Column:
    """The counts of the values of a column in `examples` that were inspected; `missing` counts NaN.

    Labels are counted by `categories`. Numbers are counted in `bins` of a grid that all runs share, so that the
    bins of parts add up exactly (as in DDSketch: Masson, Rim, Lee 2019). A bin is the sign, the exponent and the
    first four bits of the fraction of a float64: an octave has sixteen bins, and each whole number below 32 has
    its own. `mean` and `deviation` are those of the `finite` numbers, 0 without any.
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
        """The number of counted values, including missing ones; at least 1."""
        return max(1, self.missing + sum(self.bins.values()) + sum(self.categories.values()))

    def joined(self, other: Column) -> Column:
        """Return the column of the examples of both."""
        finite, apart = self.finite + other.finite, other.mean - self.mean
        mine, its = (each.finite / max(1, finite) for each in (self, other))
        spreads = self.deviation * math.sqrt(mine), other.deviation * math.sqrt(its), apart * math.sqrt(mine * its)
        bins = dict(Counter(self.bins) + Counter(other.bins))
        categories = dict(Counter(self.categories) + Counter(other.categories))
        counts = (self.examples + other.examples, self.missing + other.missing, bins, categories)
        return Column(self.dtype, *counts, self.mean + apart * its, math.hypot(*spreads), finite)

    def __str__(self) -> str:
        """Return the moments, or the share of each category, and the share of missing values."""
        total = self.values
        shown = cut([f"{name} {count / total:.1%}" for name, count in self.categories.items()])
        shown += [f"{self.mean:.4g} ± {self.deviation:.3g}"] if self.finite else []
        return ", ".join([*shown, *([f"{self.missing / total:.1%} missing"] if self.missing else [])])


@dataclass(frozen=True)
class ColumnDrift:
    """The change of a column or of one of its categories.

    `what` is ``new``, ``gone``, ``moved much``, ``moved`` or ``stable``. `psi` is the population stability index,
    None for new and gone ones. `before` and `after` are the moments, or the share of the category, or of each.
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
    """The columns of a run's examples by name, and their differences from the parent's; None if not known.

    `refusals` has a line for each column for which the run is rejected.
    """

    columns: dict[str, Column] = field(default_factory=dict)
    drift: list[ColumnDrift] | None = None
    refusals: list[str] = field(default_factory=list)

    def content(self) -> bytes:
        """The stored form of the record, whose digest is in the run's attributes; empty without columns."""
        return json.dumps(asdict(self)).encode() if self.columns else b""

    @property
    def lines(self) -> list[str]:
        """A line for each column that is not stable."""
        return [str(each) for each in self.drift or () if each.what != ORDER[-1]]


def read_columns(place: Place, attributes: Mapping[str, Any]) -> ColumnsRecord | None:
    """Return what a run with these attributes recorded, None if nothing. Raises `StoreDamaged`."""
    if not (digest := attributes.get("columns")):
        return None
    content = place.read(KEY, most=LARGEST_COLUMNS)
    with mistakes_as(lambda error: StoreDamaged(f"{place}/{KEY}: {error}; restore the file from a copy")):
        if content is None or bytes_digest(content) != digest:
            raise ValueError("it is not what was written")
        return parse(ColumnsRecord, bytes(content))


def drifted(before: Mapping[str, Column], after: Mapping[str, Column]) -> list[ColumnDrift]:
    """Return the changes of the columns from some examples to other ones, the largest first."""
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
    """Yield the changes of a column's categories, and its drift, if larger than chance explains.

    By chance the index is distributed as chi squared, times the sum of the inverse sizes of the samples (Yurdakul
    2018). It hardly exceeds its mean plus three deviations.
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
    """Return the shares of a column's categories, or of the deciles of what was `before`.

    -1 and 10 are below and above all deciles. The decile of a value is that of the middle of its ranks, because
    many values may be equal. None is the share of missing values.
    """
    keys, total = sorted(before.bins), column.values
    ends = [0, *accumulate(before.bins[key] for key in keys)]
    counts = Counter[Any](column.categories) + Counter({None: column.missing})
    for key, count in column.bins.items():
        first, last = ends[bisect_left(keys, key)], ends[bisect_right(keys, key)]
        counts[10 * (first + last) // (2 * ends[-1]) if last else -1] += count
    return {place: count / total for place, count in counts.items()}


def stability_index(before: Mapping[Any, float], after: Mapping[Any, float], least: float) -> float:
    """Return the population stability index: the sum of (a - b) ln(a / b) over shares b before and a after.

    A share counts as `least` at least, such as half an example, because an empty bin would make the index
    infinite.
    """
    both = [[max(least, each.get(place, 0.0)) for each in (before, after)] for place in {**before, **after}]
    return sum((a - b) * math.log(a / b) for b, a in both)
