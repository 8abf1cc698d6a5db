"""How long a round that has its quorum waits for those of its partitions that have not answered."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LEAST_SECONDS = 1.0
"""The shortest time that follows from the rounds before."""


@dataclass(frozen=True)
class Patience:
    """How long a round waits: for ever."""

    def seconds(self, took: Sequence[float]) -> float:
        """The seconds after which a round goes on without the rest; `took` are those of the last answers."""
        return math.inf


FOREVER = Patience()


@dataclass(frozen=True)
class Deadline(Patience):
    """A round waits for so many seconds."""

    limit: float

    def seconds(self, took: Sequence[float]) -> float:
        return self.limit


@dataclass(frozen=True)
class Usual(Patience):
    """A round waits as long as is usual: the median of the last answers, and three MADs.

    MAD is the median absolute deviation. Before the first answers a round waits for ever.
    """

    def seconds(self, took: Sequence[float]) -> float:
        if not took:
            return math.inf
        median = statistics.median(took)
        return max(LEAST_SECONDS, median + 3 * statistics.median(abs(seconds - median) for seconds in took))


def patience_of(deadline: float | str | None) -> Patience:
    """The patience of a configured deadline: a number of seconds, ``auto``, or none."""
    if deadline is None:
        return FOREVER
    return Usual() if deadline == "auto" else Deadline(float(deadline))
