"""The mapper with which several ranks share the network of a partition."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, Self, TypeVar

import torch

from roundweave.flows.plugins.tensor_parallel.finding import difference, enough, find_shares
from roundweave.flows.plugins.tensor_parallel.layers import ShareObjective
from roundweave.flows.plugins.tensor_parallel.one_process import as_ranks
from roundweave.flows.plugins.tensor_parallel.shares import Shares
from roundweave.storage.errors import ModelError, RoundFailed, UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots
from roundweave.tasks.algorithms.algebra import Map, as_given, says
from roundweave.tasks.compute.mapper import EXAMPLES, Mapper
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import Objective

T = TypeVar("T")


@dataclass(frozen=True)
class TensorParallel(Mapper):
    """Maps each partition on several ranks, each of which has some units of some layers (Dean et al. 2012).

    When it is called, all ranks run in this process, one at a time; `ranks` is how many there are. `units` names
    the unit groups that ranks divide, as `find_units` names them; without names, those are divided that divide
    most of the network. If `hybrid`, ranks divide the batch in the layers before these (Krizhevsky 2014). `shares`
    says what each has, and is None before that is known.
    """

    units: tuple[str, ...] = ()
    hybrid: bool = False
    shares: Shares | None = field(default=None, repr=False, compare=False)

    def check_map(self, map: Map) -> None:
        """Raise `UsageError` for a map of which the ranks' shares are not computed alone."""
        if not says(map, "elementwise"):
            raise UsageError(
                f"ranks = {self.ranks} is for maps that step each element by its own gradient alone, not for "
                f"map {as_given(map)}; leave one of them out"
            )

    def bound(self, objective: Objective, partitions: Any) -> Self:
        """The mapper with the ranks' shares of a run's network; raises `ModelError` if it cannot be shared."""
        if objective.spectral:
            raise ModelError(f"ranks cannot share spectral norms, as {objective.model.name} has; leave ranks out")
        if objective.anew:
            raise ModelError(
                f"closures, hooks or scripts of {objective.model.name} hold layers, which ranks cannot share; "
                "hold them as attributes, or leave ranks out"
            )
        inputs = partitions.sample(0, EXAMPLES).inputs
        return replace(self, shares=find_shares(objective, inputs, self.ranks, self.units, self.hybrid))

    def update(
        self, map: Map, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int
    ) -> Update:
        """The update of the whole network, vectors (element,), put together from those of the ranks."""
        shares = self.known_shares

        def of_rank(share: ShareObjective) -> Update:
            rank = share.group.rank
            return map(share, shares.state(state, rank), examples, shares.slots(carry, rank), seed)

        return shares.joined(self._each(objective, of_rank))

    def scored(self, objective: Objective, state: State, function: Callable[[Objective, State], T]) -> T:
        """Call a function with objective and state on all ranks, and return the result of rank 0."""
        shares = self.known_shares
        return self._each(objective, lambda share: function(share, shares.state(state, share.group.rank)))[0]

    def compare(self, objective: Objective, inputs: torch.Tensor, state: State) -> None:
        """Raise `RoundFailed` if a step of the ranks from a state differs from a step of the whole network.

        `inputs` are (example, *).
        """
        if differing := difference(objective, enough(inputs, self.ranks), self.known_shares, state):
            raise RoundFailed(
                f"round {state.round}: ranks that share units {', '.join(self.known_shares.units)} train another "
                f"network than the whole one is, as {differing}; name others as `units`, or leave ranks out"
            )

    def rounds(self, job: Any, round: int, group: Any, data: Any, halted: Callable[[], bool]) -> Iterator[Any]:
        from roundweave.flows.plugins.tensor_parallel.streaming import shared_rounds

        return shared_rounds(job, self.known_shares, round, group, data, halted)

    @property
    def known_shares(self) -> Shares:
        """What each rank has of the network; raises `UsageError` before that is known."""
        if self.shares is None:
            raise UsageError("ranks must be told their shares of the run's network before its first round")
        return self.shares

    def _each(self, objective: Objective, function: Callable[[ShareObjective], T]) -> list[T]:
        objective.built  # noqa: B018 - built once, before the ranks ask for it
        shares = self.known_shares
        return as_ranks(self.ranks, lambda group: function(ShareObjective.of(objective, shares, group)))
