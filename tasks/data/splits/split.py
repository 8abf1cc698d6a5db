"""The split of a run: the examples of each partition in each round, the held-out ones, and the sampler."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from roundweave.storage.errors import ColumnMissing, DataError, UsageError
from roundweave.tasks.data.splits.deals import Deal, Pool, Rows, find_split
from roundweave.tasks.numerics.pinning import derive_seed

SCORE_BATCH, LARGEST_SCORE_BATCH = 128, 512
"""The fewest and the most held-out examples in a scored batch. `score_batch` chooses between them."""


@dataclass(frozen=True)
class Split:
    """Assigns examples to partitions.

    Args:
        partitions: The number of partitions.
        kind: A ``name`` or ``name:argument`` that `roundweave list` shows, such as ``shards:2``.
        seed: Draws the split.
        resplit_every: The number of rounds until a new random split; None keeps the first split.

    Raises:
        UsageError: The kind is unknown, or not random although `resplit_every` needs a random one.

    Example:
        >>> split = rw.Split(4, "dirichlet:0.3")
    """

    partitions: int
    kind: str = "iid"
    seed: int = 0
    resplit_every: int | None = None

    def __post_init__(self) -> None:
        deal = find_split(self.kind)
        if deal.partitions not in (None, self.partitions):
            raise UsageError(
                f"split {self.kind} is for {deal.partitions} partitions, and there are {self.partitions}; "
                "give a number for each"
            )
        if self.resplit_every and not deal.random:
            raise UsageError(f"resplit_every needs a random split, and {self.kind} is always the same")

    @property
    def deal(self) -> Deal:
        """The deal that `kind` names."""
        return find_split(self.kind)

    def number(self, round: int) -> int:
        """Return the number of the split that a round (from 1) uses."""
        return (round - 1) // self.resplit_every if self.resplit_every else 0

    def taking_part(self, pool: Pool) -> Rows:
        """Return the rows of the examples to use, int64 (example,), before any are held out."""
        self._check_known(pool)
        return self.deal.taking_part(pool, self.partitions).rows

    def rows(self, pool: Pool, number: int) -> list[Rows]:
        """Return the rows of each partition, int64 (example,).

        Raises `DataError` if there are more partitions than examples, or if the pool lacks what the deal needs.
        """
        if (count := len(pool.rows)) < self.partitions:
            needed = f"{self.partitions} partitions need at least as many examples"
            raise DataError(f"{needed}, and there are {count}; use fewer partitions")
        self._check_known(pool)
        generator = np.random.default_rng(derive_seed(self.seed, "split", number))
        return self.deal(pool, self.partitions, generator)

    def _check_known(self, pool: Pool) -> None:
        if self.deal.labelled and pool.labels is None:
            raise DataError(f"split {self.kind} needs class labels, and the targets are none")
        if self.deal.column and self.deal.column not in pool.columns:
            known = ", ".join(pool.columns) or "none"
            raise ColumnMissing(f"split {self.kind}: the data has no column {self.deal.column!r}; it has {known}")


def held_out_rows(held: Rows, place: int, scorers: int, batch: int) -> Rows:
    """Return the held-out rows at a place among so many scorers.

    A place has whole batches, which are the same for any number of scorers. Neighbours have equal numbers of
    batches. Blocks of scorers do, too, if there are fewer batches than scorers.
    """
    batches = -(-len(held) // batch)
    first, end = (-(-batches * p // scorers) * batch for p in (place, place + 1))
    return held[first:end]


def hold_out(rows: Rows, labels: np.ndarray | None, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Choose some of the rows at random. Return the training rows and the held-out rows, in their order.

    If labels (example,) of all examples are known, the same fraction of each class is held out. If the classes are
    so small that this holds out no row or all rows, the fraction is taken of all rows together.
    """
    classes = np.zeros(len(rows), int) if labels is None else labels[rows]
    generator = np.random.default_rng(derive_seed(seed, "hold out"))
    held = np.zeros(len(rows), bool)
    for label in np.unique(classes):
        places = generator.permutation(np.flatnonzero(classes == label))
        held[places[: round(len(places) * fraction)]] = True
    if held.all() or not held.any():
        most = min(round(len(held) * fraction), len(held) - 1)
        held = generator.permutation(len(held)) < most
    return rows[~held], rows[held]


class Sampler(Protocol):
    """Chooses who takes part in a round: `size` partitions, drawn by `draw`. A plugin fills ``sampler`` with it.

    A subclass is a frozen dataclass. A sampler that draws among `present` partitions, or that `sees` the rounds
    before, is asked when a round begins. The round's record then says who took part.

    A sampler with `draw_next` serves a parameter server, and must lie in an installed package, because any process
    asks it. `draw_next` draws the partition that computes next, from the seed, the number of pushes so far,
    `sizes` and the busy partitions. Other samplers draw where the training began, and parameter servers refuse
    them.

    Example:
        >>> from dataclasses import dataclass
        >>> @dataclass(frozen=True)
        ... class First(rw.Sampler):
        ...     size: int
        ...     def draw(self, seed, round, sizes, present=None, before=None):
        ...         return tuple(range(self.size))
    """

    size: int
    by_size: bool = False
    present: bool = False
    sees: ClassVar[bool] = False
    draw_next: ClassVar[Callable[..., int] | None] = None

    def draw(
        self,
        seed: int,
        round: int,
        sizes: Sequence[int],
        present: Sequence[int] | None = None,
        before: Sequence[Any] | None = None,
    ) -> tuple[int, ...]:
        """Return the numbers of the partitions of a round, one at least and `size` at most, each once.

        `sizes` has the examples of each partition if the sampler is `by_size`, and `before` has the commits of all
        rounds before if the sampler `sees` them.
        """


@dataclass(frozen=True)
class Asked(Sampler):
    """The partitions that rounds have asked, or will ask, by the number of the round; `size` at most."""

    size: int
    rounds: Mapping[int, tuple[int, ...]]
    by_size: bool = False

    def draw(self, seed: int, round: int, *_: Any) -> tuple[int, ...]:
        return self.rounds[round]
