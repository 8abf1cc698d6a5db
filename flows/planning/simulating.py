"""Simulated times of rounds and epochs on clusters that are not at hand, and what limits them.

The costs of a work are measured on the cluster at hand. The parts of a round's critical path are computed from
them; only the maps that are stragglers are drawn at random.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from math import ceil
from urllib.parse import urlsplit

import numpy as np
import pandas as pd
import torch
from numpy.typing import NDArray
from pydantic import ConfigDict, Field

from flows.config.base import Config
from flows.config.train import TrainConfig
from flows.planning.plan import bench_for
from flows.planning.strategies import LOCAL_STEPS, Strategy
from flows.planning.trying import Bench, Lane, Timing
from flows.planning.workload import rounds_of_epoch, workload
from storage.errors import UsageError

STEPS = 10
"""Local steps in a round that is measured."""

TASKS = 200
"""The number of empty tasks with which the scheduler's time for a task is measured."""

FOLDS = 20
"""The number of additions with which the time of one is measured."""

SECONDS = 1.0
"""How long the rounds of each kind of schedule are measured."""

MESSAGE = 3e-4
"""CPU seconds of a rank per message to another: 0.2 to 0.4 ms were measured with 2 to 16 (docs/scaling.md)."""

FEWEST, MOST, ALL = 5, 40, 40_000
"""The fewest and the most rounds that are simulated if maps may be slow, and the most maps in all of them."""


class SimulatedCluster(Config):
    """A cluster to simulate: its machines, its network, and how often maps are stragglers."""

    model_config = ConfigDict(title="Simulated cluster")

    cores: int = Field(default=8, ge=1, description="cores of a machine, of which each worker has one")
    bandwidth: float = Field(default=1.25e9, gt=0, description="bytes a second of a machine's link, each way")
    latency: float = Field(default=1e-4, ge=0, description="seconds of a message between machines")
    stragglers: float = Field(default=0, ge=0, le=1, description="share of maps that are slow")
    tail: float = Field(
        default=2,
        gt=0,
        description="shape of the Pareto law of how many times as long those take; less is heavier",
    )


@dataclass(frozen=True)
class Costs:
    """The costs of a work; raises `UsageError` for negative numbers, or zeros where they must be positive.

    `examples` are those of an epoch, `batch` those of a step, `state` the bytes of a state and of an update. In
    seconds: `step` for a local step of a core, `fold` for a core to add a byte of an update to another, `task` for
    the scheduler to handle a task, `round` for what else a round takes, whatever its size.
    """

    examples: int
    batch: int
    state: int
    step: float
    fold: float = 0.0
    task: float = 0.0
    round: float = 0.0

    def __post_init__(self) -> None:
        for name, value in asdict(self).items():
            positive = name in ("examples", "batch", "step")
            if not (value > 0 if positive else value >= 0):
                raise UsageError(f"costs: {name} = {value} is not {'positive' if positive else 'zero or more'}")

    def epoch_steps(self, partitions: int) -> int:
        """The steps of each partition in an epoch, at least 1."""
        return max(1, ceil(ceil(self.examples / partitions) / self.batch))


@dataclass(frozen=True)
class Setting:
    """A simulated work on `workers` workers of a cluster, with `steps` local steps in each map."""

    costs: Costs
    cluster: SimulatedCluster
    workers: int
    steps: int
    seed: int = 0

    @property
    def machines(self) -> int:
        """The number of machines that the workers fill."""
        return ceil(self.workers / self.cluster.cores)

    @property
    def map_seconds(self) -> float:
        """The seconds of a map that is no straggler."""
        return self.steps * self.costs.step

    @property
    def transfer(self) -> float:
        """The seconds in which a link sends a state or an update; 0 if all workers are on one machine."""
        return self.costs.state / self.cluster.bandwidth if self.machines > 1 else 0.0

    @property
    def fold_seconds(self) -> float:
        """The seconds to add one update to another."""
        return self.costs.state * self.costs.fold

    def factors(self, round: int) -> NDArray[np.float64]:
        """How many times as long each worker's map takes, (worker,): 1, or a Pareto-distributed number.

        A worker's number does not depend on the number of workers or on the schedule.
        """
        slow, how = (np.random.default_rng((draw, self.seed, round)).random(self.workers) for draw in range(2))
        return np.where(slow < self.cluster.stragglers, (1 - how) ** (-1 / self.cluster.tail), 1.0)


CriticalPath = Mapping[str, float]
"""The critical path of a round: the seconds that are spent on each kind of work."""


def ranks(setting: Setting, round: int) -> CriticalPath:
    """A round of ranks: after the maps, updates go around a ring; of large ones each rank reduces a part."""
    from tasks.process_group.reduce_scatter import pays

    others, costs = setting.workers - 1, setting.costs
    shared = pays(costs.state, setting.workers)
    parts, times = (1 / setting.workers, 2) if shared else (1.0, 1)
    messages = times * others * MESSAGE
    if setting.machines > 1:  # else memory is shared; over a link a size precedes the bytes
        messages = 2 * (messages + times * others * setting.cluster.latency)
    return {
        "maps": setting.map_seconds,
        "stragglers": setting.map_seconds * (setting.factors(round).max() - 1),
        "messages": messages,
        "links": times * others * parts * setting.transfer,
        "fold": others * parts * setting.fold_seconds,
        "round": costs.round,
    }


def graph(setting: Setting, round: int) -> CriticalPath:
    """A round of tasks: the scheduler sends and collects each task; a tree of tasks reduces the updates.

    The state spreads from machine to machine, each sending it to one other at a time. The scheduler hands out all
    maps before it collects any; what it cannot collect during the maps is waited for.
    """
    from tasks.executors.graph import FAN_IN

    workers, task, latency = setting.workers, setting.costs.task, setting.cluster.latency
    nodes, sizes = _tree(workers, FAN_IN)
    # Of the updates that the first level folds, those of the same machine need no link.
    linked = sizes[0] - min(sizes[0], setting.cluster.cores) + sum(size - 1 for size in sizes[1:])
    behind = (workers / 2 + nodes - len(sizes)) * task - setting.map_seconds
    spread = (setting.machines - 1).bit_length()
    return {
        "scheduler": workers / 2 * task + max(task / 2, behind) + len(sizes) * task,
        "state's way": spread * setting.transfer + (2 if spread else 1) * latency,
        "maps": setting.map_seconds,
        "stragglers": setting.map_seconds * (setting.factors(round).max() - 1),
        "reducer's link": linked * setting.transfer + len(sizes) * latency,
        "reducer's CPU": sum(size - 1 for size in sizes) * setting.fold_seconds,
        "messages": (1 + len(sizes)) * latency,
        "round": setting.costs.round,
    }


def _tree(workers: int, fan_in: int) -> tuple[int, list[int]]:
    """The number of tasks that fold updates, and how many updates each folds at each level, from the leaves on."""
    nodes, sizes = 0, list[int]()
    while workers > 1 or not sizes:
        level = ceil(workers / fan_in)
        sizes.append(ceil(workers / level))
        nodes, workers = nodes + level, level
    return nodes, sizes


def server(setting: Setting, round: int) -> CriticalPath:
    """A round of a parameter server, one push of each worker; it takes as long as its busiest resource."""
    busy = {
        "maps": setting.map_seconds * setting.factors(round).sum() / setting.workers,
        "scheduler": setting.workers * setting.costs.task,
        "links": setting.workers * setting.transfer,
        "server": setting.workers * (setting.fold_seconds + setting.costs.round),
    }
    busiest = max(busy, key=busy.__getitem__)
    return {busiest: busy[busiest]}


KINDS: Mapping[str, Callable[[Setting, int], CriticalPath]] = {"graph": graph, "ranks": ranks, "server": server}


@dataclass(frozen=True)
class Simulated:
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
class Simulation:
    """The results for each schedule and number of workers, from costs by kind, a cluster and a seed."""

    costs: Mapping[str, Costs]
    cluster: SimulatedCluster
    seed: int
    points: tuple[Simulated, ...]

    def best(self, workers: int) -> Simulated:
        """The schedule whose epoch takes the fewest seconds on so many workers."""
        return min((point for point in self.points if point.workers == workers), key=lambda point: point.epoch)


def simulate(
    costs: Costs | Mapping[str, Costs] | TrainConfig,
    cluster: SimulatedCluster,
    workers: Sequence[int],
    local_steps: Sequence[int] = LOCAL_STEPS,
    seed: int = 0,
) -> Simulation:
    """Simulate all schedules on each number of workers; raises `UsageError` for numbers below 1.

    Costs may be given separately for each kind of schedule; the kinds are the keys of `KINDS`. Those of a training
    configuration are measured on its cluster.
    """
    if not workers or min(workers) < 1:
        raise UsageError("simulate: give numbers of workers of at least 1, such as 10,100,1000")
    if isinstance(costs, TrainConfig):
        costs = measured(costs)
    by_kind = dict.fromkeys(KINDS, costs) if isinstance(costs, Costs) else costs
    points = []
    for name, kind, steps in _schedules(sorted({*local_steps})):
        for count in sorted({*workers}):
            each = by_kind[kind]
            setting = Setting(each, cluster, count, steps or each.epoch_steps(count), seed)
            an_epoch = rounds_of_epoch(each.examples, each.batch, count, steps) if steps else 1.0
            points.append(_simulated(name, kind, setting, an_epoch))
    return Simulation(by_kind, cluster, seed, tuple(points))


def _schedules(local_steps: Sequence[int]) -> Iterator[tuple[str, str, int | None]]:
    """Name, kind and local steps of each schedule; None stands for the steps of an epoch."""
    for kind in ("graph", "ranks"):
        yield f"synchronous, {kind}", kind, 1
        yield from ((f"local {steps}, {kind}", kind, steps) for steps in local_steps if steps > 1)
        yield f"local epoch, {kind}", kind, None
    yield "asynchronous", "server", 1


def _simulated(name: str, kind: str, setting: Setting, an_epoch: float) -> Simulated:
    """Simulate one schedule, of which `an_epoch` rounds are an epoch; several rounds where maps may be slow."""
    costs, workers = setting.costs, setting.workers
    rounds = max(FEWEST, min(MOST, ALL // workers)) if setting.cluster.stragglers else 1
    paths = pd.DataFrame([KINDS[kind](setting, round) for round in range(rounds)]).fillna(0.0)
    seconds, spent = paths.sum(axis=1), paths.sum()
    median, slowest = seconds.quantile([0.5, 0.9], interpolation="nearest").tolist()
    epoch = median * an_epoch
    efficiency = costs.epoch_steps(1) * costs.step / (workers * epoch)
    share = float(spent.max() / spent.sum())
    return Simulated(name, workers, median, slowest, epoch, efficiency, str(spent.idxmax()), share)


def measured(config: TrainConfig) -> dict[str, Costs]:
    """Measure the costs of a configuration's work, by kind of schedule; raises the same errors as `plan`."""
    work, plain = workload(config)
    with bench_for(config, work, plain) as bench:
        cluster = bench.executors["graph"]
        cores = cluster.each(os.cpu_count)
        machines = len({urlsplit(address).hostname for address in cores})
        crowd = max(1.0, bench.workers / (machines * (next(iter(cores.values())) or 1)))
        began = time.perf_counter()
        cluster.gather(abs, range(TASKS))
        task = (time.perf_counter() - began) / TASKS
        graph, ranks = (_timed(bench, kind, work.local, STEPS) for kind in ("graph", "ranks"))
        server = _timed(replace(bench, work=replace(work, options={})), "graph", "async_sgd", 1)
    vector, began = torch.zeros(work.state // 4 + 1), time.perf_counter()
    for _ in range(FOLDS):
        vector += vector
    fold = (time.perf_counter() - began) / FOLDS / work.state
    step = graph.mapped / graph.rounds / STEPS / crowd
    besides = {
        "graph": graph.besides - (bench.workers + 2) * task,
        "ranks": ranks.besides,
        "server": server.drawn_out(1) - fold * work.state,
    }
    known = Costs(work.examples, work.batch, work.state, step, fold, task)
    return {kind: replace(known, round=max(0.0, each)) for kind, each in besides.items()}


def _timed(bench: Bench, kind: str, algorithm: str, steps: int) -> Timing:
    """Time rounds of all workers: rounds of local steps, or, with one step, pushes to a parameter server."""
    options = {"local_steps": steps} if steps > 1 else {}
    strategy = Strategy(f"{algorithm}-{kind}", kind, bench.workers, algorithm, steps, bench.work.batch, 1, options)
    lane = Lane(bench, strategy, steps)
    lane.train(SECONDS)
    return lane.timing
