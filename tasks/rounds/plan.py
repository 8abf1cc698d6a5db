"""The plan of a round: the tree over partitions, and the blocks in which they are mapped."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from roundweave.tasks.algorithms.reduces.tree import cover


@dataclass(frozen=True)
class RoundPlan:
    """How partitions are divided into blocks of neighbours; one task maps a block. It does not change bits.

    `cohort` are the partitions that take part, ascending; None: all. The updates of `shard` neighbours are stored
    in one file. They are in one block, so that one process writes it. Blocks have equally many files.
    """

    partitions: int
    blocks: int = 1
    shard: int = 1
    cohort: tuple[int, ...] | None = None

    @property
    def root(self) -> tuple[int, int]:
        """The root of the tree over partitions: the first, and one after the last."""
        return 0, self.partitions

    @property
    def shards(self) -> Sequence[int]:
        """The numbers of the shards with partitions that take part. There is work for as many blocks."""
        if self.cohort is None:
            return range(-(-self.partitions // self.shard))
        return tuple(dict.fromkeys(partition // self.shard for partition in self.cohort))

    def span(self, block: int) -> range:
        """The partitions of a block, also those that take no part."""
        return range(self._start(block), self._start(block + 1))

    def _start(self, block: int) -> int:
        at = -(-block * len(self.shards) // self.blocks)
        if at == len(self.shards):
            return self.partitions
        return self.shards[at] * self.shard if at else 0

    @property
    def taking_part(self) -> Sequence[int]:
        """The partitions that take part, ascending."""
        return range(self.partitions) if self.cohort is None else self.cohort

    def places(self, block: int) -> range:
        """The places, among all that take part, of the partitions of a block that do."""
        span, all = self.span(block), self.taking_part
        return range(bisect_left(all, span.start), bisect_left(all, span.stop))

    def members(self, block: int) -> Sequence[int]:
        """The partitions of a block that take part, ascending."""
        places = self.places(block)
        return self.taking_part[places.start : places.stop]

    def block_of(self, partition: int) -> int:
        """The block in which a partition is."""
        return partition // self.shard * self.blocks // len(self.shards)

    def nodes(self, block: int) -> list[tuple[int, int]]:
        """The nodes of the tree over partitions that a block computes: the fewest that cover it."""
        span = self.span(block)
        return cover(*self.root, span.start, span.stop)

    def folds(self, fan_in: int) -> Iterator[list[range]]:
        """Which neighbouring results are folded into one, level by level, until at most `fan_in` are left.

        The numbers of the first level are those of blocks; those of each later level count the results of the
        level before.
        """
        results = self.blocks
        while results > fan_in:
            plan = RoundPlan(results, -(-results // fan_in))
            yield [plan.span(group) for group in range(plan.blocks)]
            results = plan.blocks


WINDOW_SECONDS, LONG_SECONDS = 1.0, 10.0
"""Seconds of rounds in a window; the second number is for rounds that take long to be stored."""

LARGEST_WINDOW, LARGEST_OF_SERVER = 50, 1000
"""The most rounds in a window; a parameter server may have more, as its rounds are not all submitted at once."""


def window_size(
    wanted: int | None, seconds_per_round: float | None, long: bool = False, largest: int = LARGEST_WINDOW
) -> int:
    """How many rounds to submit at once: as many as `wanted`, or else as many as take about a second.

    Without known `seconds_per_round` it is one. Within a window, rounds do not wait for the client, and one is
    stored while the next is computed; therefore a window is `long` if the store is far away or the state large.
    The death of a worker costs at most the rounds of the window.
    """
    if wanted is not None:
        return wanted
    if seconds_per_round is None:
        return 1
    seconds = LONG_SECONDS if long else WINDOW_SECONDS
    return max(1, min(largest, int(seconds / max(seconds_per_round, 1e-6))))


REPLAYED_AT_ONCE = 32
"""How many rounds are replayed at once: enough to keep workers busy, few enough for a progress bar to move."""


def replay_windows(rounds: Sequence[int], split: Callable[[int], int]) -> Iterator[list[int]]:
    """Divide rounds into windows that are replayed at once.

    All rounds of a window have the same split, so that workers hold the examples of one split only.
    """
    for _, group in groupby(rounds, split):
        same = list(group)
        for first in range(0, len(same), REPLAYED_AT_ONCE):
            yield same[first : first + REPLAYED_AT_ONCE]
