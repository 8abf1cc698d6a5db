"""The inputs of a simulation: a simulated cluster, and the costs of a work, measured on the cluster at hand."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from urllib.parse import urlsplit

import torch
from pydantic import ConfigDict, Field

from flows.config.base import Config
from flows.config.train import TrainConfig
from flows.planning.plan import bench_for
from flows.planning.strategies import Strategy
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

    def rounds(self, steps: int, partitions: int) -> float:
        """The rounds of an epoch."""
        return rounds_of_epoch(self.examples, self.batch, partitions, steps)


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
        graph, ranks = (_timed(bench, kind, work.local, {"local_steps": STEPS}) for kind in ("graph", "ranks"))
        server = _timed(replace(bench, work=replace(work, options={})), "graph", "async_sgd", {})
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


def _timed(bench: Bench, kind: str, algorithm: str, options: Mapping[str, int]) -> Timing:
    """Time rounds of all workers: rounds of local steps, or single pushes to a parameter server."""
    steps = options.get("local_steps", 1)
    strategy = Strategy(f"{algorithm}-{kind}", kind, bench.workers, algorithm, steps, bench.work.batch, 1, options)
    lane = Lane(bench, strategy, steps)
    lane.train(SECONDS)
    return lane.timing
