"""A few labels in each partition."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from storage.errors import DataError
from tasks.data.splits.base import Deal, Pool, Rows, positive
from tasks.data.splits.even import cut


@dataclass(frozen=True)
class Shards(Deal):
    """Examples sorted by label and cut into shards of one size; a partition gets `each` of them, dealt at random.

    McMahan et al. 2017, section 3.
    """

    each: int
    random = True
    labelled = True

    def __call__(self, pool: Pool, partitions: int, generator: np.random.Generator) -> list[Rows]:
        """Shards dealt at random; raises `DataError` where there are fewer examples than shards."""
        count = partitions * self.each
        if len(pool.rows) < count:
            raise DataError(
                f"split shards:{self.each}: {partitions} partitions need at least {count} examples, "
                f"and there are {len(pool.rows)}; use fewer shards or partitions"
            )
        shards = cut(pool.rows[np.argsort(np.asarray(pool.labels), kind="stable")], count)
        order = generator.permutation(count).reshape(partitions, self.each)
        return [np.concatenate([shards[shard] for shard in dealt]) for dealt in order]


def shards(each: str) -> Shards:
    """Of a text, such as ``2``."""
    return Shards(positive(each, int, "shards"))
