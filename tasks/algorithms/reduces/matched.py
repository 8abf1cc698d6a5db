"""A reduce that matches hidden units before it combines networks."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal

import torch
from pydantic import Field

from roundweave.storage.errors import UsageError
from roundweave.storage.values import state as values
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import TensorSpec, Vectors, pack
from roundweave.tasks.algorithms.algebra import Reduce
from roundweave.tasks.algorithms.reduces.table import find_reduce
from roundweave.tasks.algorithms.reduces.tree import Gather, reduce_all
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.networks.objective import Objective, arrived_tensors, named_tensors

if TYPE_CHECKING:  # only a run that matches imports the matching
    from roundweave.tasks.matching.groups import Tensors, UnitGroups
    from roundweave.tasks.matching.tracing.exporting import Inputs

By = Literal["weights", "activations", "mixed"]
Metric = Literal["l2", "cosine", "correlation"]
To = Literal["start", "first", "many"]

Match = Annotated[By, Field(description="comparison of hidden units")]
MatchTo = Annotated[
    To | None,
    Field(
        description="match units to: start (of the round), first (network), many (one another); none: start, or "
        "many with init = per-partition"
    ),
]
Soft = Annotated[
    int | None, Field(ge=0, description="number of most similar units to mix, instead of a permutation; 0: all")
]
Average = Annotated[str, Field(description="reduce of the matched networks, such as median")]


@dataclass(frozen=True)
class Networks:
    """A run's networks, as `Matched` needs them to match their units."""

    objective: Objective
    partitions: Partitions
    units: UnitGroups

    def tensors(self, params: Vectors, buffers: Vectors, frozen: Vectors) -> dict[str, torch.Tensor]:
        """Return every tensor of a network by name."""
        return named_tensors(self.objective.layout, params, buffers, frozen)


@dataclass(frozen=True)
class Matched(Gather):
    """Bring the units of the updates' networks into one order, then reduce the networks by another reduce.

    `match` chooses what is compared: weights, activations or both. `metric` chooses the similarity; its default
    depends on `match`. `match_to` chooses the target: the network at the round's start (the default), the first
    update's network, or all networks with one another (``many``). Then the reduce named `average`, or `inner` if
    it is given, combines the networks. `soft` k mixes the k most similar units by a softmax with `temperature`,
    and 0 mixes all units; mixing does not preserve functions. Activations are computed on the first `examples` of
    partition 0. An update whose units are in order passes unchanged. Call `bound` with a run's networks before the
    first round.

    >>> Matched(match="activations", match_to="many").averaging
    Mean(weighted=True)
    """

    match: Match = "weights"
    match_to: MatchTo = None
    soft: Soft = None
    average: Average = "mean"
    inner: Reduce | None = None
    metric: Metric | None = None
    temperature: float = 0.1
    examples: int = 500
    networks: Networks | None = field(default=None, repr=False, compare=False)
    reorders = True

    def __post_init__(self) -> None:
        if self.soft is not None and self.to == "many":
            raise UsageError("a soft match needs match_to = start or first, not many")

    @property
    def to(self) -> To:
        """The target of the match: ``start``, ``first`` or ``many``."""
        return self.match_to or "start"

    @property
    def needs(self) -> int:
        return self.averaging.needs

    @property
    def averaging(self) -> Reduce:
        """The reduce that combines the networks once their units are in one order."""
        return self.inner or find_reduce(self.average)

    def bound(self, objective: Objective, partitions: Partitions) -> Matched:
        """Return this reduce with the unit groups of a run's networks.

        Raises `UnitsUnsound` if permuting them is unsound, and `UsageError` if no examples are at hand.
        """
        if self.match != "weights" and partitions.placement.stays:
            raise UsageError(
                f"match {self.match} needs examples of partition 0 where networks are reduced, and those "
                f"of {partitions.placement.kind}s stay there; give match weights"
            )
        from roundweave.tasks.matching.check import check_function
        from roundweave.tasks.matching.tapping import BATCH
        from roundweave.tasks.matching.units import find_units

        inputs = _inputs(partitions, BATCH if self.match != "weights" else 2)
        network = objective.fresh()
        units = find_units(network, inputs)  # all partitions have alike what no map trains
        units = units.without(spec.name for spec in objective.layout.frozen)
        check_function(network, inputs, units)
        inner = self.averaging.bound(objective, partitions)
        return replace(self, inner=inner, networks=Networks(objective, partitions, units))

    @property
    def matches(self) -> tuple[TensorSpec, ...]:
        """The tensors of a match that are stored for each partition: one permutation or mixture per unit group."""
        if self.networks is None:
            return ()
        units = self.networks.units
        mixed = {name for name in units.groups if self.soft is not None and units.mixes(name)}
        return tuple(
            TensorSpec(name, "float32", (len(table), len(table)))
            if name in mixed
            else TensorSpec(name, "int64", tuple(table.shape))
            for name, table in units.identity().items()
        )

    def __call__(self, state: State, updates: Sequence[Update]) -> Update:
        """Match and permute the networks, then call the inner reduce."""
        if self.networks is None:
            raise UsageError("Matched must be bound to the run's networks before its first round")
        start = self.networks.tensors(state.params, state.buffers, state.frozen)
        layout = self.networks.objective.layout
        arrived = [arrived_tensors(layout, state, update) for update in updates]
        permutations = self._permutations(self.networks, state, start, arrived)
        units = self.networks.units
        moved = [units.permute(tensors, order) for tensors, order in zip(arrived, permutations, strict=True)]
        aligned = [
            _aligned(self.networks, state, update, tensors, permutation)
            for update, tensors, permutation in zip(updates, moved, permutations, strict=True)
        ]
        reference = start if self.to == "start" else arrived[0]
        matches = tuple(
            values.Match(permutation, units.similarity(reference, tensors))
            for tensors, permutation in zip(moved, permutations, strict=True)
        )
        return replace(reduce_all(self.averaging, state, aligned), matches=matches)

    def _permutations(
        self, networks: Networks, state: State, start: Tensors, arrived: Sequence[Tensors]
    ) -> list[dict[str, torch.Tensor]]:
        from roundweave.tasks.matching.search.activations import activation_moments
        from roundweave.tasks.matching.search.matches import Evidence, match_all, match_each

        states = [start, *arrived] if self.to == "start" else list(arrived)
        pairs = list(combinations(range(len(states)), 2))
        if self.to != "many":
            pairs = [(0, i) for i in range(1, len(states))]
        moments: Mapping[Any, Any] = {}
        if self.match != "weights" and pairs:
            network = networks.objective.network(state)
            inputs = _inputs(networks.partitions, self.examples)
            moments = activation_moments(network, states, inputs, networks.units, pairs)
        evidence = Evidence(states, networks.units, self.match, self.metric, moments)
        if self.to == "many":
            return match_all(evidence)
        if self.soft is not None:
            orders = match_each(evidence, self.soft or None, self.temperature)
        else:
            orders = match_all(evidence, "first")
        return orders[1:] if self.to == "start" else orders


@functools.lru_cache(maxsize=2)
def _inputs(partitions: Partitions, count: int) -> Inputs:
    examples = partitions.sample(0) if count == 2 else partitions.load(0, 0).first(count)
    inputs: Inputs = examples.inputs
    return inputs


def _aligned(
    networks: Networks, state: State, update: Update, moved: Tensors, permutation: Mapping[str, torch.Tensor]
) -> Update:
    """Return the update after a permutation of its network's units. `moved` are the permuted tensors."""
    home = networks.units.identity()
    if all(not t.is_floating_point() and torch.equal(t, home[name]) for name, t in permutation.items()):
        return update
    layout = networks.objective.layout
    params = pack(layout.params, moved)
    return replace(
        update,
        direction={dtype: start - params[dtype] for dtype, start in state.params.items()},
        buffers=pack(layout.buffers, moved),
    )
