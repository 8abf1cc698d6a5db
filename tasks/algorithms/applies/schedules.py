"""Schedules change learning rates over rounds."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass

from roundweave.storage.errors import UsageError
from roundweave.storage.values.state import State
from roundweave.tasks.algorithms import options as option
from roundweave.tasks.own_code.tables import Entry, make

Shape = Callable[[float, float], float]
"""A function that maps the number of past rounds, and the part of a round that a rate is for, to a factor."""


def constant() -> Shape:
    """Return 1 always."""
    return lambda past, part: 1.0


def cosine(rounds: int) -> Shape:
    """Return half a cosine from 1 towards 0, reached after `rounds` (Loshchilov and Hutter 2017, eq. 5)."""
    _check_rounds("cosine", rounds)
    return lambda past, part: (1 + math.cos(math.pi * min(past, rounds - part) / rounds)) / 2


def linear(rounds: int) -> Shape:
    """Return a line from 1 towards 0, reached after `rounds`."""
    _check_rounds("linear", rounds)
    return lambda past, part: 1 - min(past, rounds - part) / rounds


def step(every: int, factor: float) -> Shape:
    """Multiply by `factor` after each `every` rounds."""
    _check_rounds("step", every)
    if not 0 < factor <= 1:
        raise UsageError(f"schedule step multiplies by a factor in (0, 1], not {factor}")
    return lambda past, part: factor ** (past // every)


SCHEDULES: Mapping[str, Entry] = {
    "constant": Entry("no change", ".algorithms.applies.schedules:constant"),
    "cosine": Entry("half a cosine to 0 in ROUNDS", ".algorithms.applies.schedules:cosine", "ROUNDS"),
    "linear": Entry("linear decrease to 0 in ROUNDS", ".algorithms.applies.schedules:linear", "ROUNDS"),
    "step": Entry("times FACTOR every EVERY rounds", ".algorithms.applies.schedules:step", "EVERY:FACTOR"),
}


@dataclass(frozen=True)
class Schedule:
    """The factor of a learning rate in each round, numbered from 1.

    `shape` is ``constant``, ``cosine:ROUNDS``, ``linear:ROUNDS`` or ``step:EVERY:FACTOR``. After ROUNDS, a cosine
    or a line stays at its last factor, which is above 0. In the first `warmup` rounds the factor is multiplied by
    1/(warmup + 1), 2/(warmup + 1), and so on. If the K steps of a round have factors of their own, the schedule
    has K times as many steps as rounds.

    >>> schedule = Schedule("linear:4", warmup=1)
    >>> [schedule(round) for round in (1, 2, 3, 4, 5)]
    [0.5, 0.75, 0.5, 0.25, 0.25]
    >>> Schedule("linear:4")(2, past=0.5, part=0.5)  # the second of two steps
    0.625
    """

    shape: str = "constant"
    warmup: float = 0

    def __post_init__(self) -> None:
        _shape(self.shape)
        if not 0 <= self.warmup < math.inf:
            raise UsageError(f"warmup is a number of rounds, not {self.warmup}")

    def __call__(self, round: int, past: float = 0, part: float = 1) -> float:
        """Return the factor in a round, or in a `part` of the round after the share `past`.

        A constant schedule without warm-up returns exactly 1.
        """
        past += round - 1
        return min(1.0, (past + part) / (self.warmup + part)) * _shape(self.shape)(past, part)


def with_rounds(text: str, rounds: int) -> str:
    """Add a number of rounds to a schedule's text if the text is ``cosine`` or ``linear`` alone."""
    return f"{text}:{rounds}" if text in ("cosine", "linear") else text


@functools.cache
def _shape(text: str) -> Shape:
    shape: Shape = make("schedule", text, SCHEDULES)
    return shape


def _check_rounds(name: str, rounds: int) -> None:
    if rounds < 1:
        raise UsageError(f"schedule {name} counts rounds from 1, not {rounds}")


@dataclass(frozen=True)
class Scheduled:
    """A part with a learning rate that changes over rounds.

    >>> Scheduled(lr=0.1, lr_schedule="step:10:0.5").rate(State({}, round=10))
    0.05
    """

    lr: option.LearningRate = 0.1
    _: KW_ONLY
    lr_schedule: option.LearningRateSchedule = "constant"
    warmup: option.Warmup = 0

    def __post_init__(self) -> None:
        option.check_options(self)
        Schedule(self.lr_schedule, self.warmup)  # raises `UsageError` for a text that is no schedule

    def rate(self, state: State) -> float:
        """Return the learning rate of the round that begins with this state."""
        return self.lr * Schedule(self.lr_schedule, self.warmup)(state.round + 1)
