"""The trial of an algorithm on a partition, before its first round."""

from __future__ import annotations

from dataclasses import dataclass

from roundweave.storage.errors import ModelError
from roundweave.storage.values.state import Layout
from roundweave.tasks.algorithms.algebra import Algorithm
from roundweave.tasks.algorithms.maps.gradient import LOCAL
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.examples import used_of
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code, WithCode


@dataclass(frozen=True)
class Fitting(WithCode):
    """The trial of an algorithm, whose map `mapper` computes, with `threads` threads of torch.

    If `own_loss`, a network that takes labels computes its loss. `sizes` are how many examples partitions have; if
    it is empty, they are computed from the split of the loaded data. `code` is the user's code in the algorithm.
    """

    algorithm: Algorithm
    mapper: Mapper
    threads: int
    own_loss: bool = False
    sizes: tuple[int, ...] = ()
    code: tuple[Code, ...] = ()

    def __call__(
        self, objective: Objective, partitions: Partitions, description: Description, partition: int
    ) -> tuple[Objective, Algorithm, Layout]:
        """Try one partition; returns the objective with its scores, the algorithm bound to it, and its layout.

        Raises `ModelError` if the network does not fit the examples, and whatever the mapper's check raises.
        """
        self.mapper.check_examples(partitions, partition)
        fitting = check_fit(objective, partitions, description, partition, self.own_loss)
        if fitting.rewritten and not self.algorithm.map.pseudo_gradient:
            raise ModelError(f"forward itself changes {fitting.rewritten[0]}, which would get lost; {LOCAL}")
        if self.algorithm.map.whole > 1:
            used_of(min(filter(None, self.sizes or partitions.sizes(0))), self.algorithm.map.whole)
        with pinned(0, self.threads):
            self.mapper.check(self.algorithm.map, fitting, partitions, partition, self.sizes)
        return fitting, self.algorithm.bound(fitting, partitions), fitting.layout
