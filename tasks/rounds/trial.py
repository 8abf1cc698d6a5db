"""How long maps take: tried on a run's own partitions, before it begins."""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from storage.errors import ModelError, RoundFailed
from tasks.data.partitions import Partition
from tasks.rounds.job import Work
from tasks.rounds.steps import map_block, map_groups

WARM_UP, SECONDS = 0.25, 0.25
"""Seconds of maps before they are measured, in which their steps are recorded, and while they are."""

LONG = 0.05
"""Seconds of a map from which its operations take so long that stacking them gains little."""


def block_seconds(works: Sequence[Work], share: int) -> list[float]:
    """How long each of some works takes to map the first `share` partitions: one by one, then stacked.

    Where maps are long, or more of them together took longer, the others are not tried: infinite, as for those
    that cannot be stacked.
    """
    data = _examples(works[0], share)
    list(map_block(works[0], works[0].objective.initial(), [0], data[:1], [{}]))  # the first map may import
    began = time.perf_counter()
    list(map_block(works[0], works[0].objective.initial(), [0], data[:1], [{}]))
    if (passed := time.perf_counter() - began) > LONG:
        return [passed * share] + [math.inf] * (len(works) - 1)
    found: list[float] = []
    for work in works:
        slower = len(found) > 2 and found[-1] > found[-2]
        found.append(math.inf if slower else _seconds(work, data))
    return found


def _examples(work: Work, share: int) -> list[Partition]:
    """The first partitions; where each is loaded where it is mapped, only the first, for all of them."""
    if work.partitions.source.partitioned:
        return [work.partitions.load(work.split(1), 0)] * share
    return [work.partitions.load(work.split(1), partition) for partition in range(share)]


def _seconds(work: Work, data: Sequence[Partition]) -> float:
    try:
        _pace(work, data, WARM_UP)
        return _pace(work, data, SECONDS) * len(data)
    except (ModelError, RoundFailed):
        return math.inf


def _pace(work: Work, data: Sequence[Partition], seconds: float) -> float:
    """Seconds a partition of maps for so many seconds, one block of them after another."""
    began, done, passed = time.perf_counter(), 0, 0.0
    state = work.objective.initial()
    while passed < seconds:
        for group in map_groups(work, state, [(number, each, {}) for number, each in enumerate(data)]):
            if raised := next((mapped.refused for mapped in group if mapped.raised), None):
                raise RoundFailed(raised)
            done, passed = done + len(group), time.perf_counter() - began
            if passed >= seconds:
                break
    return passed / done
