"""Whether a map can train a network on the examples: tried where they are, before a run begins."""

from __future__ import annotations

from dataclasses import dataclass

from tasks.algebra import Map
from tasks.data.partitions import Description, Partitions
from tasks.networks.fit import check_fit
from tasks.networks.objective import Objective
from tasks.numerics import pinned
from tasks.user_code import Code, WithCode

EXAMPLES = 32
"""Of a partition, at most, that a map is tried on."""


@dataclass(frozen=True)
class Fitting(WithCode):
    """What is tried: a map, with so many threads; `code` is the user's code that it is made of."""

    map: Map
    threads: int
    code: tuple[Code, ...] = ()

    def __call__(
        self, objective: Objective, partitions: Partitions, description: Description, partition: int
    ) -> Objective:
        """The objective with its scores; raises `ModelError` where it does not fit, or what the map says."""
        fitting = check_fit(objective, partitions, description, partition)
        with pinned(0, self.threads):
            self.map.check(fitting, partitions.sample(partition, EXAMPLES))
        return fitting
