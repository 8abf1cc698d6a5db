"""Strategies tried: real rounds in a root of their own, which is deleted, and what they took."""

from __future__ import annotations

import secrets
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flows.config.resolving import resolve
from flows.config.train import TrainConfig
from flows.preparing.job import Prepared, prepared
from storage.places.addresses import joined
from storage.places.schemes import place_of
from storage.rounds.commits import Commit, GangRecord
from tasks.executors.base import Executor

SECONDS, WINDOWS = 2.0, 2
"""How long rounds are measured, in so many windows, which are as long as those of a run."""

WARM_UP = 0.8
"""Seconds of rounds that are not measured: they import, load, and record steps."""


@dataclass(frozen=True)
class Tried:
    """What rounds took: the median over windows of the seconds of one, the fastest and the slowest.

    `sent` are bytes a round, None where they are not known.
    """

    seconds: float
    fastest: float
    slowest: float
    sent: int | None = None


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


def tried(config: TrainConfig, executor: Executor) -> Tried:
    """The rounds of a configuration, measured in windows after some that are not."""
    with prepared(resolve(config), executor) as run:
        warm = _warmed(executor, run)
        paces, gang = _windows(executor, run, warm)
    sent = None if gang is None else sum(gang.exchanged.values())
    return Tried(statistics.median(paces), min(paces), max(paces), sent)


def _warmed(executor: Executor, run: Prepared) -> Commit:
    """Rounds that are not measured: the last one."""
    began, done = time.perf_counter(), 0
    while True:
        for commit in executor.run(run.job, done + 1, done + (1 if done < 2 else 8)):
            done = commit.round
        if time.perf_counter() - began > WARM_UP:
            return commit


def _windows(executor: Executor, run: Prepared, warm: Commit) -> tuple[list[float], GangRecord | None]:
    """Seconds of a round in each window that follows, two at least; and the last round's record of a gang."""
    paces: list[float] = []
    began, done, size = time.perf_counter(), warm.round, max(1, round(SECONDS / WINDOWS / max(warm.seconds, 1e-4)))
    gang = warm.gang
    while len(paces) < 2 or time.perf_counter() - began < SECONDS:
        last = done + size
        window = time.perf_counter()
        for commit in executor.run(run.job, done + 1, last):
            gang = commit.gang
        paces.append((time.perf_counter() - window) / size)
        done = last
    return paces, gang
