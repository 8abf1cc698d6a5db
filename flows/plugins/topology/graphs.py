"""Topologies: which partitions average their networks with which, and by what weights.

Each partition keeps a network of its own, and between two rounds there is an exchange. Exchanges are numbered by
the round that they follow.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import dataclass

from roundweave.storage.errors import UsageError
from roundweave.tasks.own_code.tables import Entry, Table, make


@dataclass(frozen=True)
class Topology:
    """The neighbours of each partition; of two neighbours each is the other's."""

    def around(self, partition: int, partitions: int, exchange: int) -> Collection[int]:
        """A partition and its neighbours in an exchange, out of so many partitions."""
        raise NotImplementedError

    def check(self, partitions: int) -> None:
        """Raise `UsageError` if the topology is not for so many partitions."""

    def weights(self, partition: int, partitions: int, exchange: int) -> dict[int, float]:
        """What the networks of a partition and of its neighbours count in its new one, in the order of partitions.

        These are Metropolis weights: 1 / (1 + the larger number of neighbours) for a neighbour, and what is left
        for the partition itself (Xiao, Boyd and Kim 2007). Their matrix is symmetric, and its rows and
        columns have the sum 1, so that the mean of all networks stays as it is.
        """
        around = sorted(self.around(partition, partitions, exchange))
        weights = {each: 1 / max(len(around), len(self.around(each, partitions, exchange))) for each in around}
        return weights | {partition: 1 - math.fsum(weights.values()) + weights[partition]}


class Ring(Topology):
    """Each partition with the one before it and the one after it, and the last with the first."""

    def around(self, partition: int, partitions: int, exchange: int) -> Collection[int]:
        return {(partition + move) % partitions for move in (-1, 0, 1)}


class Exponential(Topology):
    """Each partition with those that are 1, 2, 4, … places before and after it (Ying et al. 2021, both ways)."""

    def around(self, partition: int, partitions: int, exchange: int) -> Collection[int]:
        moves = {way << power for power in range(partitions.bit_length()) for way in (-1, 0, 1)}
        return {(partition + move) % partitions for move in moves}


class Star(Topology):
    """Partition 0 with each other one, which has no other neighbour."""

    def around(self, partition: int, partitions: int, exchange: int) -> Collection[int]:
        return (0, partition) if partition else range(partitions)


@dataclass(frozen=True)
class Divided(Topology):
    """The base class of topologies that divide the partitions into runs of `size`."""

    size: int

    def check(self, partitions: int) -> None:
        if min(vars(self).values()) < 1 or partitions % self.size:
            raise UsageError(f"topology {self}: give numbers from 1, size a divisor of {partitions} partitions")


class Torus(Divided):
    """A grid of `size` rows, filled column by column; the last row and column are beside the first."""

    def around(self, partition: int, partitions: int, exchange: int) -> Collection[int]:
        column = {partition - partition % self.size + (partition + move) % self.size for move in (-1, 0, 1)}
        return column | {(partition + move) % partitions for move in (-self.size, self.size)}


@dataclass(frozen=True)
class TwoLevel(Divided):
    """Sites of `size` partitions, all of which are neighbours; after each `every`-th round all of all sites are.

    An exchange gives each partition the mean of its site, or of all.
    """

    every: int

    def around(self, partition: int, partitions: int, exchange: int) -> Collection[int]:
        first = partition - partition % self.size
        return range(first, first + self.size) if exchange % self.every else range(partitions)


@dataclass(frozen=True)
class Edges(Topology):
    """Neighbours by the edges between them, (edge, 2), which must join all partitions."""

    edges: tuple[tuple[int, int], ...]

    def around(self, partition: int, partitions: int, exchange: int) -> Collection[int]:
        return {partition}.union(*(edge for edge in self.edges if partition in edge))

    def check(self, partitions: int) -> None:
        reached, before = {0}, set[int]()
        while reached != before:
            before, reached = reached, reached.union(*(edge for edge in self.edges if reached.intersection(edge)))
        if wrong := (reached ^ {*range(partitions)}) | (before.union(*self.edges) - reached):
            raise UsageError(f"topology: edges must join partitions 0 to {partitions - 1}; look at {min(wrong)}")


TOPOLOGIES: Table = {
    "ring": Entry("neighbours before and after", f"{__name__}:Ring"),
    "torus": Entry("neighbours on four sides in a grid", f"{__name__}:Torus", "ROWS"),
    "exponential": Entry("neighbours 1, 2, 4, … away (Ying et al. 2021)", f"{__name__}:Exponential"),
    "star": Entry("partition 0 with each other one", f"{__name__}:Star"),
    "two_level": Entry("all of a site, after each K-th round all", f"{__name__}:TwoLevel", "SITE:K"),
}


def find_topology(named: str | tuple[tuple[int, int], ...], partitions: int) -> Topology:
    """The topology of a name or of edges; raises `UsageError` if it does not fit the partitions."""
    made: Topology = make("topology", named, TOPOLOGIES) if isinstance(named, str) else Edges(named)
    made.check(partitions)
    return made
