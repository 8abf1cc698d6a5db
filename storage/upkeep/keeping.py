"""Decide which rounds keep their tensors by a policy such as ``last:5``. Records and numbers always stay."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from roundweave.storage.errors import UsageError, near
from roundweave.storage.rounds.commits import Commit
from roundweave.storage.rounds.pruned import Pruned

SPELLINGS = ("all", "states", "updates:k", "every:k", "last:n")


WHOLE: Mapping[str, Callable[[int, int, int], bool]] = {
    "all": lambda round, newest, number: True,
    "states": lambda round, newest, number: False,
    "updates": lambda round, newest, number: round % number == 0,
    "every": lambda round, newest, number: round % number == 0,
    "last": lambda round, newest, number: round > newest - number,
}
"""Whether a round keeps everything, by policy, as a function of (round, newest round, number of the policy)."""


Asked = Callable[[int], bool]
"""A question about a round, such as whether its state was stored."""


def always(round: int) -> bool:
    """Answer yes for every round."""
    return True


def never(round: int) -> bool:
    """Answer no for every round."""
    return False


@dataclass(frozen=True)
class Keep:
    """What a run keeps: ``all``, the ``states`` of all rounds, ``every:k``-th round, or the ``last:n`` rounds.

    With ``updates:k`` it keeps the updates of all rounds and the state of every k-th, from which the other states
    can be recomputed. Under every policy a run can go on: the newest state stays, or what it is recomputed from,
    and so do the updates whose carry is in use, the initial state and frozen parameters.
    """

    what: str = "all"
    number: int = 0

    @classmethod
    def of(cls, text: str) -> Keep:
        """The policy of a text such as ``last:5``; raises `UsageError` for any other text."""
        what, colon, number = text.strip().partition(":")
        if what not in WHOLE:
            close = near(what, WHOLE)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(SPELLINGS)}"
            raise UsageError(f"keep {text!r}: nothing is kept so; {hint}")
        counted = what in ("updates", "every", "last")
        if counted != bool(colon) or (counted and not re.fullmatch("0*[1-9][0-9]{0,8}", number)):
            how = f"{what}:N with a number of rounds, 1 or more" if counted else f"{what} alone"
            raise UsageError(f"keep {text!r}: give {how}")
        return cls(what, int(number or 0))

    def __str__(self) -> str:
        return f"{self.what}:{self.number}" if self.number else self.what

    def writes_state(self, round: int) -> bool:
        """Whether a run in training writes the state of a round: it may be what the run goes on from."""
        return self.what != "updates" or self.whole(round, round)

    def writes_updates(self, round: int) -> bool:
        """Whether a run in training writes the updates of a round: if they stay, at least for a while."""
        return self.what == "updates" or self.whole(round, round)

    def whole(self, round: int, newest: int) -> bool:
        """Whether a round keeps everything once `newest` is the last round."""
        return WHOLE[self.what](round, newest, self.number)

    def counts(self, rounds: int) -> tuple[int, int]:
        """How many states, the initial and the newest too, and how many rounds' updates stay of so many rounds."""
        whole = sum(self.whole(round, rounds) for round in range(1, rounds + 1))
        states = rounds if self.what == "states" else whole + (not self.whole(rounds, rounds))
        return 1 + states, rounds if self.what == "updates" else whole

    def prunes(
        self, newest: Commit, former: Pruned, base: int | None = None, stored: Asked = always, stays: Asked = never
    ) -> Pruned:
        """Everything that is pruned under this policy once the run goes on from round `newest`.

        Args:
            newest: The commit of the last round.
            former: What was pruned before or never stored, which is part of the result.
            base: The round of a stored state from which the states needed to go on are recomputed; `newest` by
                default.
            stored: Whether the state of a round was stored.
            stays: Whether the state of a round stays under ``updates:k`` for another reason.
        """
        base = newest.round if base is None else base
        rounds = range(1, newest.round + 1)
        less = {round for round in rounds if not self.whole(round, newest.round)}
        gone, going = less - set(range(base + 1, newest.round + 1)), set[int]()
        first = 0 if self.what == "updates" else base
        again = _made_again(first, newest.round, former, stored)
        if self.what == "updates":
            gone, going = set(), {round for round in less & again if not stays(round)}
        elif self.what != "states":
            going = {round for round in less if round < base or round in again}
        updates, states = former.updates | gone, former.states | (going - {base, newest.round})
        needed = {(round, partition) for partition, round in newest.carry_from.items()}
        carried = {
            (round, partition)
            for round, partition in needed | former.carried
            if round in updates
            and former.has_update(round, partition)
            and (round not in gone or (round, partition) in needed)
        }
        return Pruned(states, updates, frozenset(carried))


def _made_again(base: int, newest: int, former: Pruned, stored: Asked) -> set[int]:
    """The rounds after `base` (a stored state) whose states can be recomputed from earlier states and updates."""
    again, known = set(), True
    for round in range(base + 1, newest + 1):
        if known and former.has_update(round):
            again.add(round)
        known = round in again or (former.has_state(round) and stored(round))
    return again
