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
    """How long a round waits: `deadline` seconds, as long as is usual if that is ``auto``, or else for ever."""

    deadline: float | str | None = None

    def seconds(self, took: Sequence[float]) -> float:
        """The seconds after which a round goes on without the rest; `took` are those of the last answers.

        What is usual is the median of these and three MADs, the median absolute deviation. Before the first
        answers a round waits for ever.
        """
        if isinstance(self.deadline, float | int):
            return self.deadline
        if self.deadline is None or not took:
            return math.inf
        median = statistics.median(took)
        return max(LEAST_SECONDS, median + 3 * statistics.median(abs(seconds - median) for seconds in took))


FOREVER = Patience()
