"""Of which rounds a run keeps the tensors; records and numbers stay of all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from storage.errors import UsageError, near
from storage.rounds.commits import Commit
from storage.rounds.pruned import Pruned

SPELLINGS = ("all", "states", "updates:k", "every:k", "last:n")


WHOLE: Mapping[str, Callable[[int, int, int], bool]] = {
    "all": lambda round, newest, number: True,
    "states": lambda round, newest, number: False,
    "updates": lambda round, newest, number: round % number == 0,
    "every": lambda round, newest, number: round % number == 0,
    "last": lambda round, newest, number: round > newest - number,
}
"""Whether a round stays whole, by what is kept."""


Asked = Callable[[int], bool]
"""What is asked of a round."""


def always(round: int) -> bool:
    """Of every round."""
    return True


def never(round: int) -> bool:
    """Of none."""
    return False


@dataclass(frozen=True)
class Keep:
    """What is kept: ``all``, the ``states`` of all rounds, ``every:k``-th round, or the ``last:n`` rounds.

    With ``updates:k`` it is the updates of all rounds, and the state of every k-th: the others are made again from
    them. Whatever is kept, a run can go on: the newest state stays, or what it is made again from, and what its
    partitions carry. So do the initial state, which a run with a damaged end begins again from, and what is
    frozen.
    """

    what: str = "all"
    number: int = 0

    @classmethod
    def of(cls, text: str) -> Keep:
        """What a text such as ``last:5`` says; raises `UsageError`."""
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

    @property
    def state_every(self) -> int:
        """Of every how many rounds a run that trains stores the state."""
        return self.number if self.what == "updates" else 1

    def prunes(
        self, newest: Commit, former: Pruned, base: int | None = None, stored: Asked = always, stays: Asked = never
    ) -> Pruned:
        """What is let go of the rounds up to the newest, which the run goes on from, and what was before.

        The states from `base` on, whose own is there, can still be had or made again; None for the newest. Whether
        a round's state was `stored` its record tells. With ``updates:k`` a state `stays` where that is asked for.
        """
        base = newest.round if base is None else base
        rounds = range(1, newest.round + 1)
        less = {round for round in rounds if not WHOLE[self.what](round, newest.round, self.number)}
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
    """The rounds after one whose state is there, of which it can be made again from an earlier one and updates."""
    again, known = set(), True
    for round in range(base + 1, newest + 1):
        if known and former.has_update(round):
            again.add(round)
        known = round in again or (former.has_state(round) and stored(round))
    return again
