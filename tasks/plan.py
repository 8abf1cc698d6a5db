"""The plan of a round: who takes part, in which blocks, with which seeds. It does no work."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.algebra import cover
from tasks.numerics import derive_seed


@dataclass(frozen=True)
class RoundPlan:
    """Partitions in blocks of neighbours; a block is what one task maps. The number of blocks changes no bits."""

    partitions: int
    blocks: int
    seed: int

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

    def map_seed(self, round: int, partition: int) -> int:
        """What a map's randomness is drawn from."""
        return derive_seed(self.seed, round, partition)
