"""The plan of a round: the tree over partitions, and the blocks in which they are mapped. It does no work."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from tasks.reduces.tree import cover


@dataclass(frozen=True)
class RoundPlan:
    """Partitions in blocks of neighbours; a block is what one task maps, `one_by_one` or as many as can.

    Neither changes bits.
    """

    partitions: int
    blocks: int = 1
    one_by_one: bool = False

    @classmethod
    def over(cls, partitions: int, workers: int) -> RoundPlan:
        """A block for each worker, as long as there are partitions."""
        return cls(partitions, min(workers, partitions))

    @property
    def root(self) -> tuple[int, int]:
        """The root of the tree over partitions."""
        return 0, self.partitions

    def span(self, block: int) -> range:
        """The partitions of a block."""
        return range(
            -(-block * self.partitions // self.blocks),
            -(-(block + 1) * self.partitions // self.blocks),
        )

    def nodes(self, block: int) -> list[tuple[int, int]]:
        """The nodes of the tree that a block computes."""
        span = self.span(block)
        return cover(*self.root, span.start, span.stop)

    def folds(self, fan_in: int) -> Iterator[list[range]]:
        """Which results become one on the way to a reduce of at most `fan_in`: neighbours, level by level.

        The first level is of blocks, each other one of what the level before gives.
        """
        results = self.blocks
        while results > fan_in:
            plan = RoundPlan(results, -(-results // fan_in))
            yield [plan.span(group) for group in range(plan.blocks)]
            results = plan.blocks


WINDOW_SECONDS, LONG_SECONDS = 1.0, 10.0
"""Seconds of rounds submitted at once, and of those that take long to be kept: the next window waits for it."""

LARGEST_WINDOW, LARGEST_OF_SERVER = 50, 1000
"""Rounds of a window at most; those of a server are not submitted at once, nor done again together."""


def window_size(
    wanted: int | None, seconds_per_round: float | None, long: bool = False, largest: int = LARGEST_WINDOW
) -> int:
    """How many rounds to submit at once: as wanted, else about a second of them, and one to begin with.

    A window spares short rounds the way to the client and back. It is a `long` one where the store is far away or
    the state large, as only within a window a round is kept beside the next. The death of a worker costs the
    window so far.
    """
    if wanted is not None:
        return wanted
    if seconds_per_round is None:
        return 1
    seconds = LONG_SECONDS if long else WINDOW_SECONDS
    return max(1, min(largest, int(seconds / max(seconds_per_round, 1e-6))))


REPLAYED_AT_ONCE = 32
"""Rounds of a window that is replayed: it keeps the workers of a cluster busy, and a bar moving."""


def replay_windows(rounds: Sequence[int], split: Callable[[int], int]) -> Iterator[list[int]]:
    """Rounds as they are replayed at once: those of one split, so that its examples are held and no others."""
    for _, group in groupby(rounds, split):
        same = list(group)
        for first in range(0, len(same), REPLAYED_AT_ONCE):
            yield same[first : first + REPLAYED_AT_ONCE]
