"""Deals: the ways to split examples into partitions, and their table by name."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Annotated, Protocol

import numpy as np
from pydantic import BeforeValidator, Field, PositiveInt

from roundweave.storage.errors import DataError
from roundweave.storage.parsing import at_commas
from roundweave.tasks.own_code.tables import Entry, make

POWER = 1.0
"""The exponent of ``sizes:power``: the second partition is half of the first, the tenth a tenth (Zipf's law)."""

LEAST, DRAWS = 10, 1000
"""The fewest examples of a partition by ``dirichlet_by_class``, as in NIID-Bench, and the most draws for them."""

MOST = 1e300
"""The largest concentration to draw with. Larger ones give the same proportions, and overflow."""

Rows = np.ndarray
"""Indices of examples, int64 (examples,)."""

PositiveFloat = Annotated[float, Field(gt=0, allow_inf_nan=False)]
Exponent = Annotated[PositiveFloat, BeforeValidator(lambda text: POWER if text == "power" else text)]


@dataclass(frozen=True)
class Pool:
    """The examples to split: their rows and, in the same order, the labels and columns that a split may use.

    `rows` are int64 (example,). `labels` are integers (example,), or None if the targets are no labels. `columns`
    have numbers or texts (example,) by name.
    """

    rows: Rows
    labels: np.ndarray | None = None
    columns: Mapping[str, np.ndarray] = field(default_factory=dict)

    def take(self, chosen: np.ndarray) -> Pool:
        """Return the examples at chosen places, given as int64 indices or a bool mask (example,)."""
        labels = None if self.labels is None else self.labels[chosen]
        return Pool(self.rows[chosen], labels, {name: column[chosen] for name, column in self.columns.items()})


class Deal(Protocol):
    """A way to split a pool. Each row goes to exactly one partition.

    `random` means that the deal uses the random generator, and `labelled` that it needs class labels. `column` is
    a column that it reads, which is then no input of the network. `partitions` is the required number of
    partitions, or None for any number.
    """

    random: bool = False
    labelled: bool = False
    column: str | None = None

    @property
    def partitions(self) -> int | None:
        return None

    def taking_part(self, pool: Pool, partitions: int) -> Pool:
        """Return the examples to use, before any are held out. The others belong to no partition."""
        return pool

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """Return the rows of each partition, which depend only on the arguments. Raises `DataError`."""
        ...


@dataclass(frozen=True)
class Iid(Deal):
    """Examples in a random order, cut into parts of equal size."""

    random = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        return cut_rows(generator.permutation(pool.rows), partitions)


@dataclass(frozen=True)
class Contiguous(Deal):
    """Examples in the order of the data, cut into parts of equal size."""

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        return cut_rows(pool.rows, partitions)


def cut_rows(rows: Rows, parts: int) -> list[Rows]:
    """Cut rows (examples,) into so many parts whose sizes differ by at most one."""
    bounds = [len(rows) * i // parts for i in range(parts + 1)]
    return [rows[low:high] for low, high in pairwise(bounds)]


@dataclass(frozen=True)
class Shards(Deal):
    """Examples sorted by label and cut into equal shards. Each partition gets `each` random shards.

    See McMahan et al. 2017, section 3. Raises `DataError` if there are fewer examples than shards.
    """

    each: PositiveInt
    random = True
    labelled = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        count = partitions * self.each
        if len(pool.rows) < count:
            raise DataError(
                f"split shards:{self.each}: {partitions} partitions need at least {count} examples, "
                f"and there are {len(pool.rows)}; use fewer shards or partitions"
            )
        shards = cut_rows(pool.rows[np.argsort(np.asarray(pool.labels), kind="stable")], count)
        order = generator.permutation(count).reshape(partitions, self.each)
        return [np.concatenate([shards[shard] for shard in dealt]) for dealt in order]


class Unequal(Deal):
    """Examples in a random order, cut into parts of unequal sizes."""

    random = True

    def counts(self, examples: int, partitions: int) -> np.ndarray:
        """Return the size of each partition, int64 (partition,), at least 1 each."""
        raise NotImplementedError

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        counts = self.counts(len(pool.rows), partitions)
        return np.split(generator.permutation(pool.rows), np.cumsum(counts)[:-1])


@dataclass(frozen=True)
class Sizes(Unequal):
    """Random examples for partitions whose sizes follow a power law.

    Partition k, counted from 1, gets one example and a part of the others proportional to k ** -`exponent`.
    Federated data have such sizes (Li et al. 2020, FedProx, section 5).
    """

    exponent: Exponent

    def counts(self, examples: int, partitions: int) -> np.ndarray:
        weights = np.arange(1, partitions + 1, dtype=float) ** -self.exponent
        return 1 + _apportioned(examples - partitions, weights)


@dataclass(frozen=True)
class Proportions(Unequal):
    """Random examples for partitions whose sizes are proportional to these weights, one for each partition."""

    weights: Annotated[tuple[PositiveFloat, ...], BeforeValidator(at_commas)]

    @property
    def partitions(self) -> int:
        return len(self.weights)

    def counts(self, examples: int, partitions: int) -> np.ndarray:
        weights = np.array(self.weights)
        counts = _apportioned(examples, weights / weights.max())
        while not counts.all():
            counts[counts.argmax()] -= 1
            counts[counts.argmin()] += 1
        return counts


def _apportioned(examples: int, weights: np.ndarray) -> np.ndarray:
    """Divide a number of examples in proportion to weights (partition,), by largest remainders.

    Returns int64 (partition,).
    """
    shares = examples * weights / weights.sum()
    counts: np.ndarray = np.floor(shares).astype(np.int64)
    missing = examples - counts.sum()
    counts[np.argsort(counts - shares, kind="stable")[:missing]] += 1
    return counts


@dataclass(frozen=True)
class By(Deal):
    """One partition for each value of a column, in the order of the values.

    Raises `DataError` if the number of values differs from the number of partitions.
    """

    column: str = field()  # other deals have none by default

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        values = np.unique(pool.columns[self.column])
        if len(values) != partitions:
            raise DataError(
                f"split by {self.column}: there are {len(values)} values and {partitions} partitions; "
                f"use {len(values)} partitions, or largest:{self.column} for those with the most examples"
            )
        return [pool.rows[pool.columns[self.column] == value] for value in values]


@dataclass(frozen=True)
class Largest(By):
    """One partition for each of the column's values with the most examples, in the order of the values.

    Other examples are left out: they are neither trained on nor held out, and belong to partition -1. Of values
    with equal numbers of examples, the smaller value is preferred. Raises `DataError` if there are fewer values
    than partitions.
    """

    def taking_part(self, pool: Pool, partitions: int) -> Pool:
        values, counts = np.unique(pool.columns[self.column], return_counts=True)
        if len(values) < partitions:
            raise DataError(
                f"split largest:{self.column}: there are {len(values)} values and {partitions} partitions; "
                f"use {len(values)} partitions at most"
            )
        most = values[np.argsort(-counts, kind="stable")[:partitions]]
        return pool.take(np.isin(pool.columns[self.column], most))


@dataclass(frozen=True)
class Dirichlet(Deal):
    """Draws each partition's label proportions from Dirichlet(`alpha` p), where p are those of all examples.

    Partitions have equal sizes (Hsu et al. 2019, section 3). The smaller `alpha`, the fewer labels a partition
    has. When a label is used up, other labels take its place, so the last partitions get what is left.
    """

    alpha: PositiveFloat
    random = True
    labelled = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        _, labels, left = np.unique(np.asarray(pool.labels), return_inverse=True, return_counts=True)
        queues = [generator.permutation(pool.rows[labels == label]) for label in range(len(left))]
        concentration = min(self.alpha, MOST) * left / left.sum()
        parts = []
        for size in map(len, cut_rows(pool.rows, partitions)):
            counts = _draw(size, concentration, left, generator)
            drawn = zip(queues, left, counts, strict=True)
            parts.append(np.concatenate([queue[n - c : n] for queue, n, c in drawn]))
            left = left - counts
        return parts


@dataclass(frozen=True)
class DirichletByClass(Deal):
    """Splits each class over the partitions in proportions drawn from Dirichlet(`alpha`), so that sizes differ.

    The method is that of Yurochkin et al. 2019, section 4, as in Li et al. 2022 (NIID-Bench, section 3). A
    partition of average size is full and gets none of the next class. Everything is drawn again until each
    partition has enough examples. Raises `DataError` if some partitions stay too small.
    """

    alpha: PositiveFloat
    random = True
    labelled = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        classes = [pool.rows[pool.labels == label] for label in np.unique(np.asarray(pool.labels))]
        # With few examples for many partitions, half the average size is enough, or no draw would succeed.
        least = max(1, min(LEAST, len(pool.rows) // (2 * partitions)))
        for _ in range(DRAWS):
            counts = self._counts(np.array(list(map(len, classes))), partitions, generator)
            if counts.sum(0).min() >= least:
                dealt = [
                    np.split(generator.permutation(rows), np.cumsum(count)[:-1])
                    for rows, count in zip(classes, counts, strict=True)
                ]
                return [np.concatenate(part) for part in zip(*dealt, strict=True)]
        raise DataError(
            f"split dirichlet_by_class:{self.alpha:g}: in {DRAWS} draws some of {partitions} partitions always "
            f"had fewer than {least} examples; use a larger number or fewer partitions"
        )

    def _counts(self, classes: np.ndarray, partitions: int, generator: np.random.Generator) -> np.ndarray:
        """Return the number of examples of each class in each partition, (class, partition).

        `classes` has the number of examples of each class.
        """
        counts = np.zeros((len(classes), partitions), np.int64)
        for label, examples in enumerate(classes):
            shares = generator.dirichlet(np.full(partitions, min(self.alpha, MOST)))
            shares = np.where(counts.sum(0) < classes.sum() / partitions, shares, 0.0)
            bounds = np.cumsum(shares) * examples / (shares.sum() or 1.0)
            counts[label] = np.diff(bounds.astype(np.int64), prepend=0)
            counts[label, -1] += examples - counts[label].sum()
        return counts


def _draw(size: int, concentration: np.ndarray, left: np.ndarray, generator: np.random.Generator) -> np.ndarray:
    """Draw the number of examples of each label, (label,), `size` in all and at most those `left`."""
    counts = np.zeros_like(left)
    while (missing := size - counts.sum()) > 0:
        # What remains of a Dirichlet draw without some labels is one over the others.
        usable = np.flatnonzero(counts < left)
        counts[usable] += generator.multinomial(missing, generator.dirichlet(concentration[usable]))
        counts = np.minimum(counts, left)
    return counts


SPLITS: Mapping[str, Entry] = {
    "iid": Entry("random, in equal sizes", ".data.splits.deals:Iid"),
    "contiguous": Entry("in the order of the data, in equal sizes", ".data.splits.deals:Contiguous"),
    "dirichlet": Entry(
        "equal sizes, with random label proportions for each partition (Hsu et al. 2019)",
        ".data.splits.deals:Dirichlet",
        "ALPHA",
    ),
    "dirichlet_by_class": Entry(
        "unequal sizes, with each class divided at random (Yurochkin et al. 2019)",
        ".data.splits.deals:DirichletByClass",
        "ALPHA",
    ),
    "shards": Entry("sorted by label, SHARDS parts for each", ".data.splits.deals:Shards", "SHARDS"),
    "sizes": Entry("sizes by a power law: `power`, or its exponent", ".data.splits.deals:Sizes", "EXPONENT"),
    "proportions": Entry("sizes in proportions such as `3,1,1`", ".data.splits.deals:Proportions", "NUMBERS"),
    "by": Entry("a partition for each value of a column", ".data.splits.deals:By", "COLUMN"),
    "largest": Entry("a partition for each of the most frequent values", ".data.splits.deals:Largest", "COLUMN"),
}


@functools.cache
def find_split(text: str) -> Deal:
    """Return the deal of a ``name`` or ``name:argument``. Raises `UsageError` for any other text."""
    deal: Deal = make("split", text, SPLITS)
    return deal
