"""The split of a run: which partition has which examples in each round, which are held out, and who takes part."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Protocol

import numpy as np

from roundweave.storage.errors import ColumnMissing, DataError, UsageError
from roundweave.tasks.data.splits.deals import Deal, Pool, Rows, find_split
from roundweave.tasks.numerics.pinning import derive_seed

SCORE_BATCH, LARGEST_SCORE_BATCH = 128, 512
"""The fewest and the most held-out examples in a batch that is scored; `score_batch` chooses between them."""


@dataclass(frozen=True)
class Split:
    """Which partition gets which examples.

    Args:
        partitions: The number of partitions.
        kind: A ``name`` or ``name:argument`` that `roundweave list` shows, such as ``shards:2``.
        seed: Draws the split.
        resplit_every: The number of rounds after which there is a new random split; None: never.

    Raises:
        UsageError: The kind is unknown, or not random although it must be.

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
        """The number of the split that a round (from 1) uses."""
        return (round - 1) // self.resplit_every if self.resplit_every else 0

    def taking_part(self, pool: Pool) -> Rows:
        """The rows of the examples to use, int64 (examples,), before any are held out."""
        self._check_known(pool)
        return self.deal.taking_part(pool, self.partitions).rows

    def rows(self, pool: Pool, number: int) -> list[Rows]:
        """The rows of each partition, int64 (examples,).

        Raises `DataError` if there are more partitions than examples, or the pool lacks what the deal needs.
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
    """The held-out rows at a place among so many scorers: whole batches, which any number of scorers leaves alike.

    Neighbours have equally many, so that blocks of scorers have, too, where there are fewer batches than scorers.
    """
    batches = -(-len(held) // batch)
    first, end = (-(-batches * p // scorers) * batch for p in (place, place + 1))
    return held[first:end]


def hold_out(rows: Rows, labels: np.ndarray | None, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Choose some of the rows at random; returns the rows to train on and the held-out rows, in their order.

    If labels (examples,) of all examples are known, the same fraction of each class is held out, or of all classes
    together where they are so small that none would be held out, or none left.
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
    """Who takes part in a round: `size` partitions, drawn by `draw`. Give one to `Plan.fill` as ``sampler``.

    One that is drawn among those that are `present`, or that `sees` the rounds before, is asked when a round
    begins; who took part is then known from the round's record. A frozen dataclass that inherits this.

    Any process asks one with `draw_next`, so its class lies in an installed package. `draw_next` draws the
    partition that computes next for a parameter server, from the seed, the number of pushes so far, `sizes` and
    who is busy. Others draw where the training began, and no parameter server has them.

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
        """The numbers of the partitions of a round, one at least and `size` at most, each once.

        `sizes` has the examples of each partition where `by_size`, and `before` the commits of all rounds before,
        where the sampler `sees` them.
        """


@dataclass(frozen=True)
class Asked(Sampler):
    """The partitions that rounds have asked, or will, by the number of the round; `size` at most."""

    size: int
    rounds: Mapping[int, tuple[int, ...]]
    by_size: bool = False

    def draw(self, seed: int, round: int, *_: Any) -> tuple[int, ...]:
        return self.rounds[round]
