"""Whether a map can train a network on the examples: tried where they are, before a run begins."""

from __future__ import annotations

from dataclasses import dataclass

from storage.errors import UsageError
from tasks.compute.mapper import Mapper
from tasks.data.partitions import Description, Partitions
from tasks.networks.fit import check_fit
from tasks.networks.objective import Objective
from tasks.numerics import pinned
from tasks.user_code import Code, WithCode

EXAMPLES = 32
"""Of a partition, at most, that a map is tried on."""


@dataclass(frozen=True)
class Fitting(WithCode):
    """What is tried: how a map is computed, with so many threads; `code` is the user's code that it is made of.

    `sizes` are those of the partitions; none where all are dealt from what is loaded at once, which tells them.
    """

    mapper: Mapper
    threads: int
    sizes: tuple[int, ...] = ()
    code: tuple[Code, ...] = ()

    def __call__(
        self, objective: Objective, partitions: Partitions, description: Description, partition: int
    ) -> Objective:
        """The objective with its scores; raises `ModelError` where it does not fit, or what the mapper says."""
        fitting = check_fit(objective, partitions, description, partition)
        with pinned(0, self.threads):
            sizes = self.sizes or (_dealt(partitions) if self.mapper.at_once > 1 else ())
            self.mapper.check(fitting, partitions.sample(partition, EXAMPLES), sizes)
        return fitting


def _dealt(partitions: Partitions) -> tuple[int, ...]:
    """The sizes of partitions; raises `UsageError` where other rounds have others, so that not all are tried."""
    sizes, split = _sizes(partitions, 0), partitions.split
    if split.resplit_every and _sizes(partitions, 1) != sizes:
        raise UsageError(
            f"stacked needs partitions whose sizes stay, and each split {split.kind} has others; leave stacked at "
            "1, or resplit_every out"
        )
    return sizes


def _sizes(partitions: Partitions, number: int) -> tuple[int, ...]:
    """The sizes of partitions in a split, in order."""
    return tuple(sorted(map(len, partitions.train_targets(number))))
