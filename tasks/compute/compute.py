"""How maps are computed: one by one, stacked, or on several ranks that share a network; and which maps can be.

It decides bits, and is therefore a part of a run's identity. Algorithms do not depend on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from roundweave.storage.errors import ModelError, UsageError
from roundweave.storage.values.state import Layout
from roundweave.tasks.algorithms.algebra import Algorithm, Map, as_given, says
from roundweave.tasks.algorithms.maps.gradient import LOCAL
from roundweave.tasks.algorithms.maps.local_steps import LocalSteps
from roundweave.tasks.compute.mapper import EXAMPLES, Mapper
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.trying.fit import check_fit
from roundweave.tasks.numerics.devices import AUTO, CPU
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code, WithCode

if TYPE_CHECKING:  # what wraps maps is imported by the runs that wrap them
    from roundweave.tasks.compute.tensor_parallel.shares import Shares

TRIED = 32
"""How many examples of a partition a map is tried on, at most."""

WHOLE_PRECISION = "float32"
"""The precision in which everything is computed in the dtype of the parameters."""


@dataclass(frozen=True)
class Compute:
    """How maps are computed.

    `threads` is how many threads torch uses, `stacked` how many partitions are trained as one batched network, and
    `ranks` how many ranks share a network. `units` names the unit groups that ranks divide, as `find_units` names
    them; without names, those are divided that divide most of the network. If `hybrid`, ranks divide the batch in
    the layers before these (Krizhevsky 2014). `device` is where maps and scores are computed, as torch names it,
    and `precision` that of forward passes. If `compiled`, torch's compiler makes the networks' code. `shares` is
    what each rank has of a run's network, None before that is known.
    """

    threads: int = 1
    stacked: int = 1
    ranks: int = 1
    units: tuple[str, ...] = ()
    hybrid: bool = False
    device: str = CPU
    precision: str = WHOLE_PRECISION
    compiled: bool = False
    shares: Shares | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.ranks == 1 and (self.units or self.hybrid):
            raise UsageError("units and hybrid say what ranks share: give ranks, 2 or more")
        if self.ranks > 1 and self.stacked > 1:
            raise UsageError(f"stacked = {self.stacked} trains networks in one process; leave it out, or ranks")
        if self.precision == "fp16" and self.stacked > 1:
            raise UsageError("precision fp16 is for networks that are trained alone; leave it out, or stacked")
        if self.compiled and (self.ranks > 1 or self.stacked > 1):
            other = "ranks" if self.ranks > 1 else "stacked"
            raise UsageError(f"compiled is for networks that are trained alone; leave it out, or {other}")
        if self.ranks > 1 and (self.device not in (CPU, AUTO) or self.precision != WHOLE_PRECISION):
            given = f"device {self.device}" if self.precision == WHOLE_PRECISION else f"precision {self.precision}"
            raise UsageError(f"ranks share a network on processors, in its own dtype; leave {given} out, or ranks")

    def scaled(self, map: Map) -> Map:
        """The map with the scaled losses of these settings; raises `UsageError`."""
        if self.precision != "fp16":
            return map
        from roundweave.tasks.compute.scaled import Scaled

        return Scaled(map)

    def mapper(self, map: Map) -> Mapper:
        """The object that computes a map; raises `UsageError` if the map cannot be computed in this way."""
        mapper = self._here(map)
        if (self.device, self.precision, self.compiled) == (CPU, WHOLE_PRECISION, False):
            return mapper
        from roundweave.tasks.compute.on_device import OnDevice

        return OnDevice(map, mapper, self.device, self.precision, self.compiled, at_once=mapper.at_once)

    def _here(self, map: Map) -> Mapper:
        """The object that computes a map on the processor."""
        if self.stacked > 1:
            if not (isinstance(map, LocalSteps) and says(map, "stackable")):
                raise UsageError(
                    f"stacked = {self.stacked} is for plain SGD from a shared start, not for map {as_given(map)}; "
                    "leave one of them out"
                )
            from roundweave.tasks.compute.stacked.replicas import StackedMapper

            return StackedMapper(map, at_once=self.stacked)
        if self.ranks > 1:
            if not says(map, "elementwise"):
                raise UsageError(
                    f"ranks = {self.ranks} is for maps that step each element by its own gradient alone, not for "
                    f"map {as_given(map)}; leave one of them out"
                )
            from roundweave.tasks.compute.tensor_parallel.mapper import TensorParallel

            return TensorParallel(map, ranks=self.ranks, shares=self.shares)
        return Mapper(map)

    def bound(self, objective: Objective, partitions: Partitions) -> Compute:
        """These settings with the ranks' shares of a run's network; raises `ModelError` if it cannot be shared."""
        if self.ranks == 1:
            return self
        if objective.spectral:
            raise ModelError(f"ranks cannot share spectral norms, as {objective.model.name} has; leave ranks out")
        if objective.anew:
            raise ModelError(
                f"closures, hooks or scripts of {objective.model.name} hold layers, which ranks cannot share; "
                "hold them as attributes, or leave ranks out"
            )
        from roundweave.tasks.compute.tensor_parallel.finding import find_shares

        inputs = partitions.sample(0, EXAMPLES).inputs
        return replace(self, shares=find_shares(objective, inputs, self.ranks, self.units, self.hybrid))


def whole_part(algorithm: Algorithm) -> str | None:
    """The reduce or apply that needs a whole network in one process; None if ranks can compute their shares."""
    parts = (algorithm.reduce, algorithm.apply)
    return next((f"{part}" for part in parts if not says(part, "elementwise")), None)


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
        if self.mapper.at_once > 1:
            partitions.check_in_memory("stacked", partition)
        fitting = check_fit(objective, partitions, description, partition, self.own_loss)
        if fitting.rewritten and not self.algorithm.map.pseudo_gradient:
            raise ModelError(f"forward itself changes {fitting.rewritten[0]}, which would get lost; {LOCAL}")
        with pinned(0, self.threads):
            sizes = self.sizes or (_dealt(partitions) if self.mapper.at_once > 1 else ())
            self.mapper.check(fitting, partitions.sample(partition, TRIED), sizes)
        return fitting, self.algorithm.bound(fitting, partitions), fitting.layout


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
    return tuple(sorted(partitions.sizes(number)))
