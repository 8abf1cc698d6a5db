"""The mapper with which several ranks share the network of a partition, and the search for their shares."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import torch

from storage.errors import ModelError, RoundFailed, UsageError
from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.compute.communicator import Communicator
from tasks.compute.mapper import Mapper
from tasks.compute.tensor_parallel.finding import best, candidates, largest, named, sliced
from tasks.compute.tensor_parallel.hybrid import joined
from tasks.compute.tensor_parallel.networks import ShareObjective
from tasks.compute.tensor_parallel.one_process import in_turn
from tasks.compute.tensor_parallel.shares import Shares
from tasks.compute.tensor_parallel.trying import difference, is_sound
from tasks.data.examples import Examples
from tasks.networks.objective import Objective

T = TypeVar("T")

EXAMPLES = 8
"""How many examples, at most, are used to compare a step of shares with a step of the whole network."""


@dataclass(frozen=True)
class TensorParallel(Mapper):
    """Maps each partition on several ranks, each of which has some units of some layers (Dean et al. 2012).

    When it is called, all ranks run in this process, one at a time; `size` is how many there are. `shares` says
    what each has, and is None before that is known.
    """

    size: int = 2
    shares: Shares | None = field(default=None, repr=False, compare=False)

    @property
    def ranks(self) -> int:
        """How many ranks share a network, which is `size`."""
        return self.size

    def __call__(
        self,
        objective: Objective,
        state: State,
        examples: Sequence[Examples],
        carries: Sequence[Mapping[str, Vectors]],
        seeds: Sequence[int],
    ) -> list[Update]:
        """The updates of the whole network, vectors (element,), put together from those of the ranks."""
        partitions = zip(examples, carries, seeds, strict=True)
        return [self._update(objective, state, *each) for each in partitions]

    def _update(
        self, objective: Objective, state: State, examples: Examples, carry: Mapping[str, Vectors], seed: int
    ) -> Update:
        shares = self.known_shares

        def of_rank(share: ShareObjective) -> Update:
            rank = share.group.rank
            return self.map(share, shares.state(state, rank), examples, shares.slots(carry, rank), seed)

        return shares.joined(self._each(objective, of_rank))

    def scored(self, objective: Objective, state: State, function: Callable[[Objective, State], T]) -> T:
        """Call a function with objective and state on all ranks, and return the result of rank 0."""
        return self._each(
            objective, lambda share: function(share, self.known_shares.state(state, share.group.rank))
        )[0]

    def compare(self, objective: Objective, inputs: torch.Tensor, state: State) -> None:
        """Raise `RoundFailed` if a step of the ranks from a state differs from a step of the whole network.

        `inputs` are (example, *).
        """
        if differing := difference(objective, _enough(inputs, self.ranks), self.known_shares, state):
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

        def of_rank(group: Communicator) -> T:
            return function(ShareObjective.of(objective, self.known_shares, group))

        return in_turn(self.ranks, of_rank)


def find_shares(
    objective: Objective, inputs: torch.Tensor, ranks: int, units: Sequence[str] = (), hybrid: bool = False
) -> Shares:
    """Find out how ranks can share a network, and try it on inputs (example, *).

    `units` names the unit groups to divide. Without names, groups are left out with which the network would
    compute another function, and the inputs of large layers outside all groups are divided, too. If `hybrid`, the
    batch is divided before the shared layers. Raises `ModelError` if the network cannot be shared so.
    """
    inputs = _enough(inputs, ranks)
    network = objective.network(objective.initial())
    fitting = candidates(network, inputs, ranks)
    if not units and not hybrid and is_sound(objective, inputs, all_of_it := sliced(network, best(fitting))):
        return all_of_it  # most networks are sound at once, and are tried only once
    shares = _grouped(objective, inputs, fitting, units)
    if hybrid:
        shares = joined(network, inputs, shares)
        if not is_sound(objective, inputs, shares):
            raise ModelError(f"shares of the batch before {shares.joins} give another function; leave hybrid out")
    wider = shares if units else sliced(network, shares)
    return wider if wider is not shares and is_sound(objective, inputs, wider) else shares


def _grouped(
    objective: Objective, inputs: torch.Tensor, fitting: Mapping[str, Shares], units: Sequence[str]
) -> Shares:
    """The shares of the named groups, or else of the best groups, that do not change the network's function.

    Raises `ModelError` if there are none.
    """
    shares = named(fitting, units) if units else best(fitting)
    if is_sound(objective, inputs, shares):
        return shares
    sound = {} if units else {n: s for n, s in fitting.items() if is_sound(objective, inputs, s)}
    if not sound:
        raise ModelError(
            f"shares of units {', '.join(shares.units)} give another function than all of them: something "
            "between their layers mixes units, counts them, or draws for some; name others as `units`, or leave "
            "ranks out"
        )
    shares = best(sound)
    return shares if is_sound(objective, inputs, shares) else largest(sound)


def _enough(inputs: torch.Tensor, ranks: int) -> torch.Tensor:
    """Inputs (example, *), repeated until there are at least as many as ranks."""
    return torch.cat([inputs] * -(-ranks // len(inputs)))
