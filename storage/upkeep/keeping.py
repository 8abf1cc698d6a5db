"""Of which rounds a run keeps the tensors; records and numbers stay of all."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from storage.errors import UsageError, near
from storage.rounds.commits import Commit
from storage.rounds.pruned import Pruned

SPELLINGS = ("all", "states", "every:k", "last:n")


WHOLE: Mapping[str, Callable[[int, int, int], bool]] = {
    "all": lambda round, newest, number: True,
    "states": lambda round, newest, number: False,
    "every": lambda round, newest, number: round % number == 0,
    "last": lambda round, newest, number: round > newest - number,
}
"""Whether a round stays whole, by what is kept."""


@dataclass(frozen=True)
class Keep:
    """What is kept: ``all``, the ``states`` of all rounds, ``every:k``-th round, or the ``last:n`` rounds.

    Whatever is kept, a run can go on: the newest state stays, and what its partitions carry. So do the initial
    state, which a run with a damaged end begins again from, and what is frozen.
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
        counted = what in ("every", "last")
        if counted != bool(colon) or (counted and not re.fullmatch("0*[1-9][0-9]{0,8}", number)):
            how = f"{what}:N with a number of rounds, 1 or more" if counted else f"{what} alone"
            raise UsageError(f"keep {text!r}: give {how}")
        return cls(what, int(number or 0))

    def __str__(self) -> str:
        return f"{self.what}:{self.number}" if self.number else self.what

    def prunes(self, newest: Commit, former: Pruned) -> Pruned:
        """What is let go of the rounds up to the newest, which the run goes on from, and what was before."""
        rounds = range(1, newest.round + 1)
        gone = {round for round in rounds if not WHOLE[self.what](round, newest.round, self.number)}
        updates = former.updates | gone
        states = former.states | (gone - {newest.round} if self.what != "states" else set())
        needed = {(round, partition) for partition, round in newest.carry_from.items()}
        carried = {
            (round, partition)
            for round, partition in needed | former.carried
            if round in updates
            and former.has_update(round, partition)
            and (round not in gone or (round, partition) in needed)
        }
        return Pruned(states, updates, frozenset(carried))
