"""A race in heats: strategies train for equal seconds, and those that have learned the most go on for longer.

Each heat takes as long as the one before, with a third of those who raced in it (Jamieson and Talwalkar 2016,
*Non-stochastic best arm identification and hyperparameter optimization*).
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, exp, log
from typing import Protocol

from storage.errors import RoundweaveError

GOING_ON = 3
"""One of so many goes on to the next heat."""

LAST = 2
"""So many race in the last heat at most."""

MOST = 0.95
"""The share of what can be learned that is to be learned soon: at about 97 % of the final accuracy it is there."""

Curve = Sequence["Point"]


@dataclass(frozen=True)
class Point:
    """What so many seconds of training bought: the loss on held-out examples, and the accuracy if there is one."""

    seconds: float
    loss: float
    accuracy: float | None = None


class Racer(Protocol):
    """Who trains when it is told to."""

    def train(self, until: float) -> None:
        """Train until it has done so for so many seconds in all, and score what was learned."""
        ...

    @property
    def curve(self) -> Curve:
        """What was learned so far, in order."""
        ...


@dataclass(frozen=True)
class Race:
    """Who raced in the `last` heat, who was `out` before, each the best first, and why others were `refused`."""

    last: Sequence[str]
    out: Sequence[str]
    refused: Mapping[str, str]


def race(racers: Mapping[str, Racer], heat: float) -> Race:
    """Have racers train in heats of so many seconds each."""
    refused: dict[str, str] = {}
    racing, out, until = list(racers), list[str](), 0.0
    while True:
        until += heat / max(1, len(racing))
        for name in racing:
            try:
                racers[name].train(until)
            except RoundweaveError as error:
                refused[name] = str(error)
        racing = ranked({name: racers[name].curve for name in racing if name not in refused})
        if len(racing) <= LAST:
            return Race(racing, out, refused)
        going_on = max(LAST, ceil(len(racing) / GOING_ON))
        racing, out = racing[:going_on], racing[going_on:] + out


def ranked(curves: Mapping[str, Curve]) -> list[str]:
    """Those with the least loss after as many seconds as all have trained, first."""
    seconds = shared(curves.values())
    return sorted(curves, key=lambda name: loss_at(curves[name], seconds))


def shared(curves: Iterable[Curve]) -> float:
    """Seconds that all have trained."""
    return min((curve[-1].seconds for curve in curves), default=0.0)


def goal(curves: Mapping[str, Curve]) -> float:
    """The loss at which most is learned: a share of what the best has taken off the loss at the start, of all."""
    start = next(iter(curves.values()))[0].loss
    best = min(curve[-1].loss for curve in curves.values())
    return best + (1 - MOST) * (start - best)


def behind(curves: Mapping[str, Curve]) -> dict[str, float]:
    """How many times as long as the quickest each takes to where most is learned, the quickest first.

    Who has not come so far is compared by its own last loss.
    """
    most = goal(curves)
    there = {name: seconds_to(curve, most) for name, curve in curves.items() if curve[-1].loss <= most}
    quickest = min(there, key=there.__getitem__)
    times = {
        name: there[name] / there[quickest]
        if name in there
        else curve[-1].seconds / seconds_to(curves[quickest], curve[-1].loss)
        for name, curve in curves.items()
    }
    return dict(sorted(times.items(), key=lambda pair: pair[1]))


def loss_at(curve: Curve, seconds: float) -> float:
    """The loss after so many seconds: between two points it falls as time grows by factors."""
    for one, other in pairwise(curve):
        if one.seconds <= seconds <= other.seconds:
            share = log(seconds / one.seconds) / log(other.seconds / one.seconds)
            return one.loss + share * (other.loss - one.loss)
    return curve[0].loss if seconds < curve[0].seconds else curve[-1].loss


def seconds_to(curve: Curve, loss: float) -> float:
    """The seconds after which a curve has come down to a loss."""
    if curve[0].loss <= loss:
        return curve[0].seconds
    for one, other in pairwise(curve):
        if other.loss <= loss:
            return one.seconds * exp(
                log(other.seconds / one.seconds) * (one.loss - loss) / (one.loss - other.loss)
            )
    return curve[-1].seconds
