"""Simulated times of rounds and epochs by number of workers, and what limits them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from flows.config.train import TrainConfig
from flows.planning.simulating.costs import Costs, SimulatedCluster, measured
from flows.planning.simulating.rounds import KINDS, Setting
from flows.planning.strategies import LOCAL_STEPS
from storage.errors import UsageError

FEWEST, MOST, ALL = 5, 40, 40_000
"""The fewest and the most rounds that are simulated if maps may be slow, and the most maps in all of them."""


@dataclass(frozen=True)
class Point:
    """A schedule on so many workers: the seconds of a round (median, and 90th percentile `slowest`) and an epoch.

    `efficiency` is the seconds of an epoch's steps in one process, as a share of the seconds of all workers.
    `bound` is what takes the largest `share` of a round's critical path.
    """

    schedule: str
    workers: int
    seconds: float
    slowest: float
    epoch: float
    efficiency: float
    bound: str
    share: float


@dataclass(frozen=True)
class Curves:
    """A point for each schedule and number of workers, simulated from costs by kind, a cluster and a seed."""

    costs: Mapping[str, Costs]
    cluster: SimulatedCluster
    seed: int
    points: tuple[Point, ...]

    def best(self, workers: int) -> Point:
        """The schedule whose epoch takes the fewest seconds on so many workers."""
        return min((point for point in self.points if point.workers == workers), key=lambda point: point.epoch)


def beyond(config: TrainConfig, cluster: SimulatedCluster, workers: Sequence[int]) -> Curves:
    """Measure a work on the cluster at hand, and simulate it on another; raises as `plan` and `simulate` do."""
    _check(workers)
    return simulate(measured(config), cluster, workers, seed=config.seed)


def simulate(
    costs: Costs | Mapping[str, Costs],
    cluster: SimulatedCluster,
    workers: Sequence[int],
    local_steps: Sequence[int] = LOCAL_STEPS,
    seed: int = 0,
) -> Curves:
    """Simulate all schedules on each number of workers; raises `UsageError` for numbers below 1.

    Costs may be given separately for each kind of schedule; the kinds are the keys of `KINDS`.
    """
    _check(workers)
    by_kind = dict.fromkeys(KINDS, costs) if isinstance(costs, Costs) else costs
    points = (
        _point(name, kind, steps, Setting(by_kind[kind], cluster, count, steps or 0, seed))
        for name, kind, steps in _schedules(sorted({*local_steps}))
        for count in sorted({*workers})
    )
    return Curves(by_kind, cluster, seed, tuple(points))


def _check(workers: Sequence[int]) -> None:
    if not workers or min(workers) < 1:
        raise UsageError("simulate: give numbers of workers of at least 1, such as 10,100,1000")


def _schedules(local_steps: Sequence[int]) -> Iterator[tuple[str, str, int | None]]:
    """Name, kind and local steps of each schedule; None stands for the steps of an epoch."""
    for kind in ("graph", "ranks"):
        yield f"synchronous, {kind}", kind, 1
        yield from ((f"local {steps}, {kind}", kind, steps) for steps in local_steps if steps > 1)
        yield f"local epoch, {kind}", kind, None
    yield "asynchronous", "server", 1


def _point(name: str, kind: str, steps: int | None, setting: Setting) -> Point:
    costs, workers = setting.costs, setting.workers
    setting = replace(setting, steps=steps or costs.epoch_steps(workers))
    spent: dict[str, float] = defaultdict(float)
    seconds = []
    for round in range(max(FEWEST, min(MOST, ALL // workers)) if setting.cluster.stragglers else 1):
        trail = KINDS[kind](setting, round)
        trail += (("round", trail[-1][1] + costs.round),) if kind != "server" else ()
        for (what, until), before in zip(trail, (0.0, *(until for _, until in trail)), strict=False):
            spent[what] += until - before
        seconds.append(trail[-1][1])
    median, slowest = np.quantile(seconds, (0.5, 0.9), method="nearest").tolist()
    epoch = median * (costs.rounds(steps, workers) if steps else 1.0)
    bound = max(spent, key=spent.__getitem__)
    efficiency = costs.epoch_steps(1) * costs.step / (workers * epoch)
    return Point(name, workers, median, slowest, epoch, efficiency, bound, spent[bound] / sum(seconds))
