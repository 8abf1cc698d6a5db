"""What a run keeps of its rounds, by a policy such as ``last:5``. Records and numbers always stay."""

from __future__ import annotations

import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping
from dataclasses import astuple, dataclass, fields

from roundweave.storage.errors import UsageError, near
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.pruned import Pruned

Asked = Callable[[int], bool]
"""A question about a round, such as whether its state was stored."""


def always(round: int) -> bool:
    """Answer yes for every round."""
    return True


@dataclass(frozen=True)
class Keep(ABC):
    """A policy. It decides for which rounds the state and the updates stay. Its fields are numbers of rounds.

    A run can go on under every policy. The newest state stays, or what it is computed again from. So do the
    updates whose carry is in use, the initial state and frozen parameters. If a round's updates stay, its state
    may go only if it can be computed again from them.
    """

    maps_again = False
    """Whether enough stays with each stored state to map the rounds after it again."""

    @abstractmethod
    def state(self, round: int, newest: int) -> bool:
        """Tell whether the state of a round stays once `newest` is the last round."""

    def updates(self, round: int, newest: int) -> bool:
        """Tell whether the updates of a round stay once `newest` is the last. The default: if its state does."""
        return self.state(round, newest)

    @staticmethod
    def of(text: str) -> Keep:
        """Return the policy of a text such as ``last:5``. Raises `UsageError` for any other text."""
        name, *numbers = text.strip().split(":")
        if (kind := POLICIES.get(name)) is None:
            close = near(name, POLICIES)
            hint = f"did you mean {close[0]}?" if close else f"there are {policies_spelled()}"
            raise UsageError(f"keep {text!r} is no policy; {hint}")
        if len(numbers) != len(fields(kind)) or not all(re.fullmatch("0*[1-9][0-9]{0,8}", n) for n in numbers):
            how = f"{kind.spelling()} with a number of rounds, 1 or more" if fields(kind) else f"{name} alone"
            raise UsageError(f"keep {text!r}: give {how}")
        return kind(*map(int, numbers))

    @classmethod
    def spelling(cls) -> str:
        """Return how the policy is written, such as ``last:n``."""
        return ":".join([cls.__name__.lower(), *(field.name for field in fields(cls))])

    def __str__(self) -> str:
        return ":".join([type(self).__name__.lower(), *map(str, astuple(self))])

    def counts(self, rounds: int) -> tuple[int, int]:
        """Return the numbers of states and of rounds' updates that stay of so many rounds.

        The initial and the newest state count, too.
        """
        numbers = range(1, rounds + 1)
        states = 1 + sum(round == rounds or self.state(round, rounds) for round in numbers)
        return states, sum(self.updates(round, rounds) for round in numbers)

    def prunes(
        self,
        newest: Commit,
        former: Pruned,
        base: int | None = None,
        stored: Asked = always,
        single: Iterable[tuple[int, int]] = (),
    ) -> Pruned:
        """Return everything that is pruned under this policy once the run goes on from round `newest`.

        Args:
            newest: The commit of the last round.
            former: What was pruned before or never stored. The result includes it.
            base: The round of a stored state from which the states that are needed to go on are computed again.
                The default is `newest`.
            stored: Tells whether the state of a round was stored.
            single: Updates, as (round, partition), that stay to map rounds again from a stored state.
        """
        last = newest.round
        base, rounds = last if base is None else base, range(1, last + 1)
        again = _computable(last, former, stored)

        def state_goes(round: int) -> bool:
            if self.state(round, last) or round in (base, last):
                return False
            if self.updates(round, last):
                return round in again
            return round < base or round in again

        gone = {round for round in rounds if round <= base and not self.updates(round, last)}
        updates, states = former.updates | gone, former.states | set(filter(state_goes, rounds))
        needed = {*single, *((round, partition) for partition, round in newest.carry_from.items())}
        carried = {
            (round, partition)
            for round, partition in needed | former.carried
            if round in updates
            and former.has_update(round, partition)
            and (round not in gone or (round, partition) in needed)
        }
        return Pruned(states, updates, frozenset(carried))


class All(Keep):
    """Everything stays."""

    def state(self, round: int, newest: int) -> bool:
        return True


class States(Keep):
    """The states of all rounds stay."""

    def state(self, round: int, newest: int) -> bool:
        return True

    def updates(self, round: int, newest: int) -> bool:
        return False


@dataclass(frozen=True)
class Every(Keep):
    """Everything of each k-th round stays."""

    k: int

    def state(self, round: int, newest: int) -> bool:
        return round % self.k == 0


class Updates(Every):
    """The updates of all rounds stay, and each k-th state. The other states can be computed again."""

    def updates(self, round: int, newest: int) -> bool:
        return True


@dataclass(frozen=True)
class Last(Keep):
    """Everything of the last n rounds stays."""

    n: int

    def state(self, round: int, newest: int) -> bool:
        return round > newest - self.n


class Recompute(Every):
    """The state of each k-th round stays, with what is needed to map the rounds after it again."""

    maps_again = True

    def updates(self, round: int, newest: int) -> bool:
        return False


POLICIES: Mapping[str, type[Keep]] = {
    kind.__name__.lower(): kind for kind in (All, States, Updates, Every, Last, Recompute)
}
"""All policies, by name."""


def policies_spelled() -> str:
    """Return how the policies are written, as one text."""
    return ", ".join(kind.spelling() for kind in POLICIES.values())


def _computable(newest: int, former: Pruned, stored: Asked) -> set[int]:
    """Return the rounds whose states can be computed again from earlier states and updates."""
    again, known = set(), True
    for round in range(1, newest + 1):
        if known and former.has_update(round):
            again.add(round)
        known = round in again or (former.has_state(round) and stored(round))
    return again
