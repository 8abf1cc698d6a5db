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
from flows.training.preparing import Prepared, prepared
from storage.places.addresses import joined
from storage.places.schemes import place_of
from storage.rounds.commits import Commit
from tasks.executors.base import Executor

SECONDS = 0.8
"""How long rounds are measured, after as many that are not."""

WARM_UP = 0.4
"""Seconds of rounds that are not measured: they import, load, and record steps."""

MOST_ROUNDS = 2_000


@dataclass(frozen=True)
class Tried:
    """What rounds took: the median over windows of the seconds of one, the fastest and the slowest, and bytes.

    `sent` and `stored` are bytes a round; `memory` the most of a rank's, None where it is not known.
    """

    seconds: float
    fastest: float
    slowest: float
    stored: int
    sent: int | None = None
    memory: int | None = None


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


def tried(config: TrainConfig, executor: Executor, seconds: float = SECONDS) -> Tried:
    """The rounds of a configuration, measured for so many seconds, and at least two windows."""
    config = config.model_copy(update={"rounds": MOST_ROUNDS, "evaluate_every": MOST_ROUNDS, "keep": "all"})
    with prepared(resolve(config), executor) as run:
        done, commit = _passed(executor, run, 0, WARM_UP)
        paces, began = [], time.perf_counter()
        while len(paces) < 2 or time.perf_counter() - began < seconds:
            window, began_window = max(1, round(seconds / 4 / max(commit.seconds, 1e-4))), time.perf_counter()
            last = min(done + window, MOST_ROUNDS - 1)
            if last == done:
                break
            for commit in executor.run(run.job, done + 1, last):
                pass
            paces.append((time.perf_counter() - began_window) / (last - done))
            done = last
        gang = commit.gang
        stored = run.store.tensors.kept_bytes(1) - run.store.tensors.kept_bytes(0)
    return Tried(
        statistics.median(paces),
        min(paces),
        max(paces),
        stored,
        None if gang is None else sum(gang.exchanged.values()),
        None if gang is None else max(gang.memory),
    )


def _passed(executor: Executor, run: Prepared, done: int, seconds: float) -> tuple[int, Commit]:
    """Rounds for so many seconds: the last one that was done."""
    began = time.perf_counter()
    while True:
        for commit in executor.run(run.job, done + 1, done + (1 if done < 2 else 8)):
            done = commit.round
        if time.perf_counter() - began > seconds:
            return done, commit
