"""The mapper with which several ranks share the network of a partition."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from roundweave.storage.errors import RoundFailed, UsageError
from roundweave.storage.values.state import State, Update
from roundweave.storage.values.tensors import Slots
from roundweave.tasks.compute.mapper import Mapper
from roundweave.tasks.compute.tensor_parallel.finding import difference, enough
from roundweave.tasks.compute.tensor_parallel.layers import ShareObjective
from roundweave.tasks.compute.tensor_parallel.one_process import as_ranks
from roundweave.tasks.compute.tensor_parallel.shares import Shares
from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import Objective

T = TypeVar("T")


@dataclass(frozen=True)
class TensorParallel(Mapper):
    """Maps each partition on several ranks, each of which has some units of some layers (Dean et al. 2012).

    When it is called, all ranks run in this process, one at a time; `ranks` is how many there are. `shares` says
    what each has, and is None before that is known.
    """

    ranks: int = 2
    shares: Shares | None = field(default=None, repr=False, compare=False)

    def update(self, objective: Objective, state: State, examples: Examples, carry: Slots, seed: int) -> Update:
        """The update of the whole network, vectors (element,), put together from those of the ranks."""
        shares = self.known_shares

        def of_rank(share: ShareObjective) -> Update:
            rank = share.group.rank
            return self.map(share, shares.state(state, rank), examples, shares.slots(carry, rank), seed)

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
