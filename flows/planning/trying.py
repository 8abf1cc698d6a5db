"""Strategies tried: real rounds in a root of their own, which is deleted, and what they took."""

from __future__ import annotations

import secrets
import time
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import ceil
from statistics import mean
from typing import Self

from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.preparing.job import Prepared, prepared
from storage.places.addresses import joined
from storage.places.schemes import place_of
from storage.rounds.commits import Commit
from tasks.executors.base import Executor

SECONDS = 2.0
"""How long rounds are measured in all, in windows as those of a run."""

WARM_UP = 0.8
"""Seconds of rounds that are not measured: they import, load, and record steps."""


@dataclass(frozen=True)
class Tried:
    """What rounds took: the mean of the seconds of one, and that of the fastest window and of the slowest.

    `sent` are bytes a round, None where they are not known.
    """

    seconds: float
    fastest: float
    slowest: float
    sent: int | None = None

    @classmethod
    def of(cls, turns: Sequence[Tried]) -> Self:
        """What as many turns of the same length took together."""
        return cls(
            mean(turn.seconds for turn in turns),
            min(turn.fastest for turn in turns),
            max(turn.slowest for turn in turns),
            turns[-1].sent,
        )


@contextmanager
def trial_root(root: str) -> Iterator[str]:
    """A root for trials beside the runs of another; what is in it is deleted."""
    trials = joined(root, f".trials-{secrets.token_hex(4)}")
    place = place_of(trials)
    place.make()
    try:
        yield trials
    finally:
        place.delete("")


def tried(config: TrainConfig, executor: Executor, seconds: float) -> Tried:
    """The rounds of a configuration, measured for so long in windows, after some that are not."""
    with prepared(resolve(config), executor) as run:
        newest = _warmed(executor, run)
        windows: list[tuple[int, float]] = []
        began = time.perf_counter()
        while len(windows) < 2 or time.perf_counter() - began < seconds:
            size = min(run.window(newest.seconds), ceil(seconds / max(newest.seconds, 1e-4)))
            window = time.perf_counter()
            newest = _done(executor, run, newest.round + 1, newest.round + size)
            windows.append((size, time.perf_counter() - window))
    paces = [taken / size for size, taken in windows]
    average = sum(taken for _, taken in windows) / sum(size for size, _ in windows)
    sent = sum(newest.gang.exchanged.values()) if newest.gang else None
    return Tried(average, min(paces), max(paces), sent)


def _warmed(executor: Executor, run: Prepared) -> Commit:
    """Rounds that are not measured: the last one."""
    began, first = time.perf_counter(), 1
    while True:
        newest = _done(executor, run, first, first + (0 if first < 3 else 7))
        if time.perf_counter() - began > WARM_UP:
            return newest
        first = newest.round + 1


def _done(executor: Executor, run: Prepared, first: int, last: int) -> Commit:
    """Rounds done: the last one."""
    return deque(executor.run(run.job, first, last), maxlen=1).pop()
