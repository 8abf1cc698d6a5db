"""What all contenders are given, and how they tell what they measured; peers may have numpy alone."""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import islice, pairwise
from pathlib import Path
from typing import Any

import numpy as np

BEGAN = "BENCHMARK_BEGAN"
"""The environment variable with the moment at which a process was started, in seconds of `time.time`."""


@dataclass(frozen=True)
class Recipe:
    """A network by the sizes of its layers, and its rounds: examples a batch, how many, learning rate.

    A `cohort` of the partitions takes part, None for all; rounds that are `scored` end with a look at the held-out
    examples.
    """

    sizes: tuple[int, ...]
    partitions: int
    batch: int
    rounds: int
    lr: float = 0.1
    cohort: int | None = None
    scored: bool = True


STEP = Recipe((784, 512, 256, 10), partitions=2, batch=32, rounds=150)
"""535,818 parameters; a round is one step."""

ACCURACY = Recipe((784, 512, 512, 10), partitions=2, batch=64, rounds=20_000)
"""Steps until the target is reached; one machine has a single partition."""

FEDAVG = Recipe((784, 256, 10), partitions=10, batch=32, rounds=8)
"""One local epoch a round, of the examples dealt evenly."""

CLIENTS = Recipe((64, 32, 10), partitions=100, batch=8, rounds=24, scored=False)
"""Ten local steps a round: one pass over the 80 examples of each."""

STACKED = replace(CLIENTS, rounds=200)
"""The same where rounds are short: enough for several windows of them."""

FEDERATED = {
    "all": Recipe((784, 32, 10), partitions=100, batch=20, rounds=40),
    "cohort": Recipe((784, 32, 10), partitions=10_000, batch=6, rounds=100, cohort=50),
}
"""One local epoch a round."""

ROUNDS = {"fedavg": FEDAVG, "clients": CLIENTS, **FEDERATED}
"""Federated averaging in rounds, of one pass over the examples of each."""

SPLIT = Recipe((784, 4096, 10), partitions=1, batch=64, rounds=6)
"""Of 3,256,330 parameters; so many local steps a round:"""

SPLIT_STEPS = 100
EXAMPLES_OF_CLIENT = 80
ELEMENTS = 100
"""Of the vector that a round without work averages."""

EMPTY_ROUNDS = 160
TARGET = 0.97
EVALUATED_EVERY = 100
"""Steps between two looks at the held-out examples, on the way to the target."""


@dataclass(frozen=True)
class Arrays:
    """Inputs (examples, features) of float32 and targets (examples,) of int64."""

    inputs: np.ndarray
    targets: np.ndarray

    def part(self, partition: int, partitions: int) -> Arrays:
        """Every so manieth example, copied."""
        rows = slice(partition, None, partitions)
        return Arrays(self.inputs[rows].copy(), self.targets[rows].copy())


def load(file: str | Path) -> tuple[Arrays, Arrays]:
    """The examples, and those that are held out."""
    with np.load(file) as arrays:
        return Arrays(arrays["x"], arrays["y"]), Arrays(arrays["x_held_out"], arrays["y_held_out"])


def since_start() -> float:
    """Seconds since this process was started."""
    return time.time() - float(os.environ[BEGAN])


def pace(moments: Sequence[float], every: int = 1) -> float:
    """Seconds a round: the median over so many rounds each, of the moments at which rounds ended.

    The first of them do not count.
    """
    marks = moments[every - 1 :: every]
    return statistics.median(after - before for before, after in pairwise(marks)) / every


def tell_rounds(name: str, rounds: Iterable[Any], accuracy: Callable[[Any], float]) -> None:
    """Tell of the rounds of a recipe; an accuracy is that of what a round gives."""
    recipe, ended, reached = ROUNDS[name], [], 0.0
    for given in islice(rounds, recipe.rounds):
        if recipe.scored:
            reached = accuracy(given)
        ended.append(since_start())
    if name == "fedavg":
        return tell(round=pace(ended), first=ended[0], accuracy=reached)
    return tell(round=1e3 * pace(ended))


def tell(**readings: float) -> None:
    """Print the readings as the last line."""
    print(json.dumps(readings), flush=True)
