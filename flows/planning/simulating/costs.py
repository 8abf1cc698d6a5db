"""What a work takes, wherever it runs, and how that is found on the cluster at hand."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from math import ceil
from urllib.parse import urlsplit

import torch

from flows.config.train import TrainConfig
from flows.planning.plan import bench_for
from flows.planning.strategies import Strategy
from flows.planning.trying import Bench, Lane, Timing
from flows.planning.workload import workload
from storage.errors import UsageError
from tasks.executors.base import Executor

STEPS = 10
"""Local steps of a round."""

TASKS = 200
"""So many tasks that do nothing tell what the scheduler takes for one."""

FOLDS = 20
"""So many additions tell what one takes."""

SECONDS = 1.0
"""How long rounds of each kind and length are measured."""


@dataclass(frozen=True)
class Costs:
    """What a work takes of machines; raises `UsageError` for what cannot be.

    `examples` are those of an epoch, `batch` those of a step, `state` the bytes of a state and of an update.
    Seconds of a core: `step` of a local step, `fold` to reduce a byte of an update with another. Seconds of the
    scheduler: `task` of a task. Seconds of a round besides, whatever its size: `round`.
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
        """Steps of an epoch, of each partition; at least one."""
        return max(1, ceil(ceil(self.examples / partitions) / self.batch))

    def rounds(self, steps: int, partitions: int) -> float:
        """Rounds of an epoch; a partition with fewer examples than a batch has batches of all of them."""
        return self.examples / (min(self.batch, self.examples / partitions) * steps * partitions)


def measured(config: TrainConfig) -> dict[str, Costs]:
    """What the work of a configuration costs by each kind of schedule; raises as `plan`."""
    work, plain = workload(config)
    with bench_for(config, work, plain) as bench:
        cluster = bench.executors["graph"]
        cores = cluster.each(os.cpu_count)
        machines = len({urlsplit(address).hostname for address in cores})
        crowd = max(1.0, bench.workers / (machines * (next(iter(cores.values())) or 1)))
        task = _task_seconds(cluster)
        graph, ranks = (_timed(bench, kind, work.local, {"local_steps": STEPS}) for kind in ("graph", "ranks"))
        server = _timed(replace(bench, work=replace(work, options={})), "graph", "async_sgd", {})
    known = Costs(work.examples, work.batch, work.state, 1.0, _fold_seconds(work.state), task)
    step = graph.mapped / graph.rounds / STEPS / crowd
    besides = {
        "graph": graph.besides - (bench.workers + 2) * task,
        "ranks": ranks.besides,
        "server": server.drawn_out(1) - known.fold * work.state,
    }
    return {kind: replace(known, step=step, round=max(0.0, each)) for kind, each in besides.items()}


def _timed(bench: Bench, kind: str, algorithm: str, options: Mapping[str, int]) -> Timing:
    """Rounds of all workers, of so many local steps or of arrivals."""
    steps = options.get("local_steps", 1)
    strategy = Strategy(f"{algorithm}-{kind}", kind, bench.workers, algorithm, steps, bench.work.batch, 1, options)
    lane = Lane(bench, strategy)
    lane.train(SECONDS)
    return lane.timing


def _task_seconds(cluster: Executor) -> float:
    """Seconds of one of many tasks that do nothing."""
    began = time.perf_counter()
    cluster.gather(abs, range(TASKS))
    return (time.perf_counter() - began) / TASKS


def _fold_seconds(state: int) -> float:
    """Seconds to add a byte of an update to another."""
    vector, began = torch.zeros(state // 4 + 1), time.perf_counter()
    for _ in range(FOLDS):
        vector += vector
    return (time.perf_counter() - began) / FOLDS / state
