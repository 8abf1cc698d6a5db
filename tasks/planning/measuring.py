"""What a process does in a second: steps, reduces, writes. Measured in each at once, as they will work."""

from __future__ import annotations

import itertools
import os
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from statistics import mean

import psutil

from storage.errors import RoundFailed
from storage.places.addresses import joined
from storage.places.schemes import place_of
from storage.values.digests import tensor_digest
from storage.values.state import Update
from storage.values.tensors import to_numpy
from tasks.data.partitions import Partition
from tasks.reduces.tree import fold_updates
from tasks.rounds.job import Work
from tasks.rounds.steps import map_partition, score_block

SECONDS = 0.5
"""How long each is measured."""


@dataclass(frozen=True)
class Pace:
    """What a process takes: seconds of a step, of a map besides, of scoring, of reducing a byte, of storing one.

    `resident` are the bytes that it has of the machine's memory by then, `available` those that are left for each;
    `cores` those that the machine has for all.
    """

    step: float
    start: float
    score: float
    reduce: float
    store: float
    resident: int
    available: int
    cores: int

    @classmethod
    def slowest(cls, paces: Sequence[Pace]) -> Pace:
        """That of processes which wait for each other."""
        least = {name: min(getattr(each, name) for each in paces) for name in ("available", "cores")}
        return cls(**{f.name: max(getattr(each, f.name) for each in paces) for f in fields(cls)} | least)

    @classmethod
    def mean(cls, paces: Sequence[Pace]) -> Pace:
        """That of processes which share cores: what one is held back another gains."""
        times = {f.name: mean(getattr(each, f.name) for each in paces) for f in fields(cls) if f.type == "float"}
        return replace(cls.slowest(paces), **times)


def pace(works: Mapping[int, Work], processes: int, root: str) -> Pace:
    """The pace of this process, of so many on its machine, by maps of a few local steps and of many.

    `works` are those of so many steps; it stores in a root of trials.
    """
    (least, few), (most, _) = works.items()
    examples = few.partitions.load(few.split(1), 0)
    short, long = (_map_seconds(work, examples) for work in works.values())
    step = max(0.0, (long - short) / (most - least))
    return Pace(
        step,
        max(0.0, short - least * step),
        _seconds(lambda: score_block(few, few.objective.initial(), [examples])),
        _reduce_seconds(few),
        _store_seconds(few, root),
        psutil.Process().memory_info().rss,
        psutil.virtual_memory().available // processes,
        os.cpu_count() or 1,
    )


def _map_seconds(work: Work, data: Partition) -> float:
    """Seconds of a map."""
    state = work.objective.initial()

    def one() -> None:
        if (mapped := map_partition(work, state, 1, 0, data, {})).raised:
            raise RoundFailed(f"partition 0 cannot be measured: {mapped.refused}")

    one()  # the first may import
    return _seconds(one)


def _reduce_seconds(work: Work) -> float:
    """Seconds to reduce a byte of an update with another."""
    state = work.objective.initial()
    updates = [Update(dict(state.params), dict(state.buffers), weight=1) for _ in range(2)]
    size = sum(vector.nbytes for vector in state.params.values())
    return _seconds(lambda: fold_updates(work.algorithm.reduce, (0, 2), dict(enumerate(updates)))) / size


def _store_seconds(work: Work, root: str) -> float:
    """Seconds to store a byte of a state with its digest, where runs are stored."""
    place, params = place_of(joined(root, secrets.token_hex(4))), work.objective.initial().params
    place.make()
    keys = map(str, itertools.count())

    def store() -> None:
        for name, vector in params.items():
            tensor_digest(name, vector)
        place.write(next(keys), *(to_numpy(vector).data.cast("B") for vector in params.values()))

    return _seconds(store) / sum(vector.nbytes for vector in params.values())


def _seconds(function: Callable[[], object]) -> float:
    """Seconds of a call: all of the time counts, and not the median, since a process is held back between, too."""
    done, began, passed = 0, time.perf_counter(), 0.0
    while not done or passed < SECONDS:
        function()
        done, passed = done + 1, time.perf_counter() - began
    return passed / done


def nothing(partition: int) -> None:
    """A task that does nothing: what it takes, others take for it."""
