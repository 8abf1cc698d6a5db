"""A race in heats: racers train for equal seconds, and those that have learned the most go on for longer.

Each heat takes as long as the one before, with a third of those who raced in it (Jamieson and Talwalkar 2016,
*Non-stochastic best arm identification and hyperparameter optimization*).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import ceil, exp, inf, log
from typing import Protocol

import numpy as np

from roundweave.storage.errors import RoundweaveError

GOING_ON = 3
"""One racer of this many goes on to the next heat."""

LAST = 2
"""At most this many race in the last heat."""

MOST = 0.95
"""The share of the way to the lowest loss to which times are compared; about 97 % of the final accuracy."""

Curve = Sequence["Point"]


@dataclass(frozen=True)
class Point:
    """The held-out loss after some seconds of training, and the accuracy if there is one."""

    seconds: float
    loss: float
    accuracy: float | None = None


class Racer(Protocol):
    """Something that trains for given times and gives the curve of its loss."""

    def train(self, until: float) -> None:
        """Train until it has done so for this many seconds in all, and score what was learned."""

    @property
    def curve(self) -> Curve:
        """The points measured so far, in order of time; the last one is at infinity if the training is over."""


@dataclass(frozen=True)
class Race:
    """The racers of the `last` heat and those `out` before it, the best first, and why others were `refused`.

    Each racer of the last heat trained for `seconds`. If `whole`, the run itself takes no longer than that.
    """

    last: Sequence[str]
    out: Sequence[str]
    refused: Mapping[str, str]
    seconds: float
    whole: bool = False


def race(racers: Mapping[str, Racer], heat: float, length: Callable[[], float] = lambda: inf) -> Race:
    """Have racers train in heats of this many seconds, until two are left or all have trained as long as the run.

    `length` gives the seconds of the run; it is asked after each heat, when racers have shown how fast they are.
    """
    refused: dict[str, str] = {}
    racing, out, until = list(racers), list[str](), 0.0
    while True:
        until += heat / max(1, len(racing))
        for name in racing:
            try:
                racers[name].train(until)
            except RoundweaveError as error:
                refused[name] = str(error)
        seconds = min(until, length())
        racing = ranked({name: racers[name].curve for name in racing if name not in refused}, seconds)
        if len(racing) <= LAST or seconds < until:
            return Race(racing, out, refused, seconds, whole=seconds < until)
        going_on = max(LAST, ceil(len(racing) / GOING_ON))
        racing, out = racing[:going_on], racing[going_on:] + out


def ranked(curves: Mapping[str, Curve], seconds: float) -> list[str]:
    """Names by the loss after these seconds, or after as many as all have trained; the lowest loss first."""
    seconds = min([seconds, *(curve[-1].seconds for curve in curves.values())])
    return sorted(curves, key=lambda name: loss_at(curves[name], seconds))


def cut_curve(curve: Curve, seconds: float) -> Curve:
    """The part of a curve up to these seconds."""
    if curve[-1].seconds <= seconds:
        return curve
    return [*(point for point in curve if point.seconds < seconds), Point(seconds, loss_at(curve, seconds))]


def goal(curves: Mapping[str, Curve], share: float = MOST) -> float:
    """The loss at which a share of the way from the loss at the start down to the lowest last loss is done.

    It is the lowest last loss if none is below that of the start.
    """
    start = next(iter(curves.values()))[0].loss
    best = min(curve[-1].loss for curve in curves.values())
    return best + (1 - share) * max(0.0, start - best)


def behind(curves: Mapping[str, Curve], most: float) -> dict[str, float]:
    """How many times as long as the quickest each takes to reach a loss, the quickest first.

    A curve that does not reach it is compared at its own last loss, and left out if it has learned nothing: that
    loss is not below the one at the start. At least one curve must reach it.
    """
    there = {name: seconds_to(curve, most) for name, curve in curves.items() if curve[-1].loss <= most}
    quickest = min(there, key=there.__getitem__)
    times = {
        name: there[name] / there[quickest]
        if name in there
        else curve[-1].seconds / seconds_to(curves[quickest], curve[-1].loss)
        for name, curve in curves.items()
        if name in there or curve[-1].loss < curve[0].loss
    }
    return dict(sorted(times.items(), key=lambda pair: pair[1]))


def loss_at(curve: Curve, seconds: float) -> float:
    """The loss after some seconds: between two points it changes linearly with the logarithm of time."""
    times, losses = [log(point.seconds) for point in curve], [point.loss for point in curve]
    return float(np.interp(log(seconds), times, losses))


def seconds_to(curve: Curve, loss: float) -> float:
    """The seconds after which a curve has first come down to a loss; its last ones if it never does."""
    if curve[0].loss <= loss:
        return curve[0].seconds
    for one, other in pairwise(curve):
        if other.loss <= loss:
            share = (one.loss - loss) / (one.loss - other.loss)
            return one.seconds * exp(log(other.seconds / one.seconds) * share)
    return curve[-1].seconds
