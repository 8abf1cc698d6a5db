"""A map whose partitions are each worked on by a team of ranks that share the network."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

import torch

from storage.errors import ModelError, RoundFailed, UsageError
from storage.values.state import State, Update
from storage.values.tensors import Vectors
from tasks.algebra import Map
from tasks.data.examples import Examples
from tasks.data.partitions import Partitions
from tasks.networks.objective import Objective
from tasks.teams.finding import best, candidates, largest, named, sliced
from tasks.teams.hybrid import joined
from tasks.teams.networks import ShareObjective
from tasks.teams.shares import Shares
from tasks.teams.team import Team, in_turn
from tasks.teams.trying import difference, is_sound

T = TypeVar("T")

EXAMPLES = 8
"""On so many examples at most a step of shares is compared with that of the whole network."""


@dataclass(frozen=True)
class Teamed(Map):
    """Another map, done by so many `ranks` that each have a share of the units of some layers (Dean et al. 2012).

    `units` names the groups of units that are shared, as `find_units` does; none: those that cut most of the
    network. A `hybrid` shares the examples before the first of these layers (Krizhevsky 2014). Where it is called,
    the ranks are in this process, one at a time. Bound to a run's network before its first round.
    """

    inner: Map
    team: int = 2
    units: tuple[str, ...] = ()
    hybrid: bool = False
    shares: Shares | None = field(default=None, repr=False, compare=False)

    def __post_init__(self) -> None:
        if self.inner.stack > 1:
            raise UsageError(
                f"stacked = {self.inner.stack} is for networks of one process; leave it out, or ranks"
            )

    @property
    def ranks(self) -> int:
        """The size of the team."""
        return self.team

    @property
    def carry(self) -> tuple[str, ...]:
        """As the other map's."""
        return self.inner.carry

    @property
    def extras(self) -> tuple[str, ...]:
        """As the other map's."""
        return self.inner.extras

    def bound(self, objective: Objective, partitions: Partitions) -> Teamed:
        """This map for a run's network, with shares found and tried; raises `ModelError` where there are none."""
        inputs = self._enough(partitions.sample(0, EXAMPLES).inputs)
        shares = find_shares(objective, inputs, self.team, self.units, self.hybrid)
        return replace(self, inner=self.inner.bound(objective, partitions), shares=shares)

    def __call__(
        self,
        objective: Objective,
        state: State,
        examples: Examples,
        carry: Mapping[str, Vectors],
        seed: int,
    ) -> Update:
        """The update of the whole network, vectors (element,), whose parts the ranks have made."""
        shares = self.found

        def of_rank(share: ShareObjective) -> Update:
            rank = share.team.rank
            return self.inner(share, shares.state(state, rank), examples, shares.slots(carry, rank), seed)

        return shares.joined(self._each(objective, of_rank))

    def as_team(self, objective: Objective, state: State, function: Callable[[Objective, State], T]) -> T:
        """What a function of a network's objective and state gives on each rank: the first one's."""
        return self._each(objective, lambda share: function(share, self.found.state(state, share.team.rank)))[0]

    def compare(self, objective: Objective, inputs: torch.Tensor, state: State) -> None:
        """Raise `RoundFailed` where a step from a state, on inputs (examples, *), is not the whole network's."""
        if differing := difference(objective, self._enough(inputs), self.found, state):
            raise RoundFailed(
                f"round {state.round}: ranks that share units {', '.join(self.found.units)} train another network "
                f"than the whole one is, as {differing}; name others as `units`, or leave ranks out"
            )

    def _enough(self, inputs: torch.Tensor) -> torch.Tensor:
        """Inputs (examples, *), as many at least as there are ranks."""
        return torch.cat([inputs] * -(-self.team // len(inputs)))

    @property
    def found(self) -> Shares:
        """What each rank has; raises `UsageError` before that is known."""
        if self.shares is None:
            raise UsageError("Teamed must be bound to the run's network before its first round")
        return self.shares

    def _each(self, objective: Objective, function: Callable[[ShareObjective], T]) -> list[T]:
        objective.built  # noqa: B018 - built once, before the ranks ask for it

        def of_rank(team: Team) -> T:
            return function(ShareObjective.of(objective, self.found, team))

        return in_turn(self.team, of_rank)


def find_shares(
    objective: Objective, inputs: torch.Tensor, ranks: int, units: Sequence[str] = (), hybrid: bool = False
) -> Shares:
    """How so many ranks share a network, by inputs (examples, *); raises `ModelError` where nothing can be shared.

    Of the groups that are not named, those are left out whose shares give another function; large layers in none
    of them are shared by their inputs.
    """
    network = objective.network(objective.initial())
    fitting = candidates(network, inputs, ranks)
    if not units and not hybrid and is_sound(objective, inputs, all_of_it := sliced(network, best(fitting))):
        return all_of_it  # what is sound at once, as most networks are, is tried once
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
    """The shares of groups that are named, or of the best, that leave the function as it is."""
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
