"""The ways to merge from cheap to dear, and what came of those that were tried."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass, replace
from typing import Any, Literal

from flows.config.merge import MergeConfig
from flows.merging.preparing import MergePlan
from storage.rounds.commits import Score
from tasks.merging.repair import is_repairable

Match = Literal["none", "weights", "activations", "mixed"]
MATCHES: tuple[Match, ...] = ("none", "weights", "activations", "mixed")

SOFT = 3
"""Of how many units a mixture is made: more gain little (docs/results.md)."""


@dataclass(frozen=True)
class Way:
    """How networks are matched, repaired and averaged: what `match = auto` decides of a configuration."""

    match: Match
    repair: bool = False
    average: Literal["mean", "best"] = "mean"
    soft: int | None = None

    def chosen(self, config: MergeConfig) -> MergeConfig:
        """The configuration that merges in this way alone."""
        return config.model_copy(update={**asdict(self), "max_barrier": None})

    @property
    def options(self) -> str:
        """What to give `roundweave merge` for the same merge, beside the other options."""
        soft = "" if self.soft is None else f" --soft {self.soft}"
        average = "" if self.average == "mean" else f" --average {self.average}"
        return f"--match {self.match}{soft}{average} --{'' if self.repair else 'no-'}repair"


@dataclass(frozen=True)
class Rung:
    """A way that was tried: the held-out score of the network that it gives, and the seconds that it took.

    `barrier` is how far the loss rises, along the path of two networks or at that network, above the parents';
    None where that network is one of them.
    """

    way: Way
    score: Score
    barrier: float | None
    seconds: float

    def row(self) -> dict[str, Any]:
        """All of it by name."""
        numbers = {"barrier": self.barrier, **self.score.row(), "seconds": self.seconds}
        return {"options": self.way.options, **asdict(self.way), **numbers}


@dataclass(frozen=True)
class Ladder:
    """The ways that were tried, in this order, until a barrier was at most the bound, in units of the loss."""

    bound: float
    rungs: tuple[Rung, ...] = ()

    @property
    def reached(self) -> bool:
        """Whether the last one tried is within the bound."""
        return bool(self.rungs) and _height(self.rungs[-1]) <= self.bound

    @property
    def chosen(self) -> Rung:
        """The one within the bound, else the one with the lowest barrier."""
        return self.rungs[-1] if self.reached else lowest(self.rungs)

    @property
    def reason(self) -> str:
        """Why no further way was tried, and this one is taken."""
        if self.reached:
            return f"the first way whose barrier is at most {self.bound:.4f}"
        return f"no way reached the bound of {self.bound:.4f}, and of all its barrier is the lowest"

    def row(self) -> dict[str, Any]:
        """All of it, for machines."""
        told = {"chosen": self.chosen.way.options, "reached": self.reached, "reason": self.reason}
        return {"max_barrier": self.bound, **told, "tried": [rung.row() for rung in self.rungs]}


def lowest(rungs: Sequence[Rung]) -> Rung:
    """The one with the lowest barrier, of equal ones the first."""
    return min(rungs, key=_height)


def _height(rung: Rung) -> float:
    return math.inf if rung.barrier is None else rung.barrier


def ways(plan: MergePlan, tried: Sequence[Rung]) -> Iterator[Way]:
    """All ways that a network allows, from cheap to dear (docs/merging.md has what they cost).

    Each is in `tried` before the next is asked for. The best point of a path costs nothing more, but is the less
    of a merge the nearer it is to a parent, so it comes after the means; mixtures, which change what the networks
    compute, are last.
    """
    config, units = plan.config, plan.units
    can = (False, True) if is_repairable(plan.subject.objective.model.build(), units) else (False,)
    repairs = [repair for repair in can if config.repair in (None, repair)]
    matches = MATCHES if units.groups else MATCHES[:1]
    yield from (Way(match, repair) for repair in repairs for match in matches)
    if len(config.networks) == 2 and not config.coefficients and not config.layers:
        yield replace(lowest(tried).way, average="best")
    if any(units.mixes(name) for name in units.groups):
        yield from (Way("mixed", repair, soft=SOFT) for repair in repairs)
