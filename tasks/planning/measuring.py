"""What a process does in a second: steps, reduces, writes. Measured in each at once, as they will work."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields
from functools import partial

import psutil

from storage.values.state import Update
from tasks.data.partitions import Partition
from tasks.maps.stepping.backprop import EAGER
from tasks.reduces.tree import fold_updates
from tasks.rounds.job import Work
from tasks.rounds.steps import map_partition, score_block

SECONDS = 0.25
"""How long each is measured."""


@dataclass(frozen=True)
class Pace:
    """What a process takes: seconds of a step, of a map besides, of scoring, of reducing a byte.

    `resident` are the bytes that it has of the machine's memory by then, `available` those that are left for each.
    """

    step: float
    start: float
    score: float
    reduce: float
    resident: int
    available: int

    @classmethod
    def slowest(cls, paces: Sequence[Pace]) -> Pace:
        """That of processes which wait for each other."""
        least = {"available": min(each.available for each in paces)}
        return cls(**{f.name: max(getattr(each, f.name) for each in paces) for f in fields(cls)} | least)


def pace(few: Work, many: Work, processes: int) -> Pace:
    """The pace of this process, of so many on its machine, by maps of a few local steps and of many."""
    examples = few.partitions.load(few.split(1), 0)
    counts = [work.algorithm.map.count(len(examples.train)) for work in (few, many)]
    seconds = [_map_seconds(work, examples) for work in (few, many)]
    step = max(0.0, (seconds[1] - seconds[0]) / (counts[1] - counts[0]))
    return Pace(
        step,
        max(0.0, seconds[0] - counts[0] * step),
        _seconds(lambda: score_block(few, few.objective.initial(), [examples])),
        _reduce_seconds(few),
        psutil.Process().memory_info().rss,
        psutil.virtual_memory().available // processes,
    )


def _map_seconds(work: Work, data: Partition) -> float:
    """Seconds of a map, once its steps are recorded."""
    state = work.objective.initial()
    one = partial(map_partition, work, state, 1, 0, data, {})
    steps = work.algorithm.map.count(len(data.train))
    began, done = time.perf_counter(), 0
    while done <= EAGER + 8 and time.perf_counter() - began < SECONDS:
        one()
        done += steps
    return _seconds(one)


def _reduce_seconds(work: Work) -> float:
    """Seconds to reduce a byte of an update with another."""
    state = work.objective.initial()
    updates = [Update(dict(state.params), dict(state.buffers), weight=1) for _ in range(2)]
    size = sum(vector.nbytes for vector in state.params.values())
    return _seconds(lambda: fold_updates(work.algorithm.reduce, (0, 2), dict(enumerate(updates)))) / size


def _seconds(function: Callable[[], object]) -> float:
    """Seconds of a call: all of the time counts, and not the median, since a process is held back between, too."""
    done, began, passed = 0, time.perf_counter(), 0.0
    while not done or passed < SECONDS:
        function()
        done, passed = done + 1, time.perf_counter() - began
    return passed / done
