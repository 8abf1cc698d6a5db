"""What rounds and epochs take on any number of workers, and what bounds them."""

from __future__ import annotations

import gc
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from math import inf

import numpy as np

from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.costs import Costs
from flows.planning.simulating.runs.parts import FAILURES
from flows.planning.simulating.schedules import KINDS, Schedule, schedules
from storage.errors import UsageError

FEWEST, MOST, ALL = 5, 40, 40_000
"""Rounds that are simulated after the first: at least, at most, and of all workers together."""


@dataclass(frozen=True)
class Point:
    """A schedule on so many workers: seconds a round (median, 10th and 90th percentile) and an epoch.

    `efficiency` is the share of the workers' time that one process alone would need for an epoch; `spent` are the
    mean seconds of a round on its longest way, by what they go for; `bound` is what most of them go for, a `share`
    of a round. `held` are the bytes of updates that one process has at once. A round that never ends has infinite
    seconds.
    """

    schedule: str
    workers: int
    seconds: float
    fastest: float
    slowest: float
    epoch: float
    efficiency: float
    bound: str
    share: float
    spent: Mapping[str, float]
    held: float


@dataclass(frozen=True)
class Curves:
    """What was simulated, of which costs by kind: a point for each schedule and number of workers."""

    costs: Mapping[str, Costs]
    cluster: SimulatedCluster
    seed: int
    points: tuple[Point, ...]

    @property
    def schedules(self) -> list[str]:
        """Their names in order."""
        return list(dict.fromkeys(point.schedule for point in self.points))

    def of(self, schedule: str) -> list[Point]:
        """The points of a schedule, by number of workers."""
        return [point for point in self.points if point.schedule == schedule]

    def at(self, workers: int) -> list[Point]:
        """The points of so many workers."""
        return [point for point in self.points if point.workers == workers]

    def best(self, workers: int) -> Point:
        """The one whose epoch takes the least on so many workers."""
        return min(self.at(workers), key=lambda point: point.epoch)


def simulate(
    costs: Costs | Mapping[str, Costs],
    cluster: SimulatedCluster,
    workers: Sequence[int],
    local_steps: Sequence[int] = (10, 100),
    seed: int = 0,
) -> Curves:
    """Simulate all schedules on each number of workers; raises `UsageError` for numbers that cannot be.

    Costs may differ by the kind of schedule: `KINDS` has their names.
    """
    for what, numbers in (("workers", workers), ("local steps", local_steps)):
        if any(number < 1 for number in numbers):
            raise UsageError(f"simulate: {what} = {', '.join(map(str, numbers))}: at least 1 each")
    if not workers:
        raise UsageError("simulate: give at least one number of workers, such as 10,100,1000")
    by_kind = dict.fromkeys(KINDS, costs) if isinstance(costs, Costs) else costs
    points = (
        _point(schedule, by_kind[schedule.kind], cluster, count, seed)
        for schedule in schedules(sorted({*local_steps}))
        for count in sorted({*workers})
    )
    return Curves(by_kind, cluster, seed, tuple(points))


def _point(schedule: Schedule, costs: Costs, cluster: SimulatedCluster, workers: int, seed: int) -> Point:
    setting = schedule.setting(costs, cluster, workers, seed)
    with _uncollected():
        outcome = schedule.run(setting, 1 + rounds_simulated(workers))
    # The first one begins with all machines idle.
    later = [inf] if outcome.endless else outcome.seconds[1:]
    low, median, high = np.quantile(later, (0.1, 0.5, 0.9), method="nearest").tolist()
    epoch = schedule.rounds_of_epoch(setting) * median
    spent = {what: seconds / max(1, len(outcome.seconds)) for what, seconds in outcome.spent.most_common()}
    bound = FAILURES if outcome.endless else next(iter(spent))
    return Point(
        schedule=schedule.name,
        workers=workers,
        seconds=median,
        fastest=low,
        slowest=high,
        epoch=epoch,
        efficiency=costs.alone / (workers * epoch),
        bound=bound,
        share=1.0 if outcome.endless else min(1.0, spent[bound] * len(outcome.seconds) / sum(outcome.seconds)),
        spent=spent,
        held=schedule.held(setting),
    )


@contextmanager
def _uncollected() -> Iterator[None]:
    """Within, no circles of garbage are looked for: with as many events that takes longer than the events."""
    enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if enabled:
            gc.enable()


def rounds_simulated(workers: int) -> int:
    """How many rounds are simulated on so many workers."""
    return max(FEWEST, min(MOST, ALL // workers))
