"""Try, before a run begins, whether a map can train a network on the examples, on the workers that have them."""

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
"""How many examples of a partition a map is tried on, at most."""


@dataclass(frozen=True)
class Fitting(WithCode):
    """The trial of a map: `mapper` computes it, with `threads` threads of torch.

    `sizes` are how many examples partitions have; if it is empty, they are computed from the split of the loaded
    data. `code` is the user's code in the mapper.
    """

    mapper: Mapper
    threads: int
    sizes: tuple[int, ...] = ()
    code: tuple[Code, ...] = ()

    def __call__(
        self, objective: Objective, partitions: Partitions, description: Description, partition: int
    ) -> Objective:
        """Try one partition, and return the objective with its scores.

        Raises `ModelError` if the network does not fit the examples, and whatever the mapper's check raises.
        """
        fitting = check_fit(objective, partitions, description, partition)
        with pinned(0, self.threads):
            sizes = self.sizes or (_dealt(partitions) if self.mapper.at_once > 1 else ())
            self.mapper.check(fitting, partitions.sample(partition, EXAMPLES), sizes)
        return fitting


def _dealt(partitions: Partitions) -> tuple[int, ...]:
    """The sizes of partitions; raises `UsageError` if other splits have other sizes, which would not be tried."""
    sizes, split = _sizes(partitions, 0), partitions.split
    if split.resplit_every and _sizes(partitions, 1) != sizes:
        raise UsageError(
            f"stacked needs partitions whose sizes stay, and each split {split.kind} has others; leave stacked at "
            "1, or resplit_every out"
        )
    return sizes


def _sizes(partitions: Partitions, number: int) -> tuple[int, ...]:
    """The sizes of the partitions of split `number`, in ascending order."""
    return tuple(sorted(map(len, partitions.train_targets(number))))
