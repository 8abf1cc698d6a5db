"""The work and the cluster measured: what predictions are made from."""

from __future__ import annotations

import statistics
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from urllib.parse import urlsplit

from flows.config.resolving import resolve, work_of
from flows.config.train import TrainConfig
from flows.planning.strategies import Strategy, base, local
from flows.planning.trying import SECONDS, Tried, tried
from flows.planning.workload import Workload
from storage.errors import RoundweaveError
from tasks.executors.base import Executor
from tasks.planning.measuring import Pace, nothing, pace
from tasks.rounds.job import Work

FEW, MANY = 2, 42
"""Local steps of two maps, whose difference is of steps alone."""

TRIAL = {"rounds": 100_000, "evaluate_every": 100_000, "keep": "all", "name": None}
"""What a trial has of its own: more rounds than there is time for, of which none is scored."""

COPIES = 6
"""Of a state that a process holds at most: the network, its gradients, the states before and after, updates."""

Size = tuple[int, int]
"""So many partitions, and so many local steps of each."""

TASKS, TIMES = 200, 5
"""So many tasks that do nothing tell what a scheduler takes for one, so often."""


@dataclass(frozen=True)
class Calibration:
    """What was measured of a work on a cluster of so many workers, on so many machines.

    `alone` is the pace of a lone process by its number of threads, `together` that of workers which are all at
    work. `task` are the seconds that the scheduler takes for one of many tasks, `level` those from one task to
    what depends on it. `rounds` are those that were tried, by the name of their strategy, and `failed` says why
    others were not.
    """

    workers: int
    machines: int
    alone: Mapping[int, Pace]
    together: Pace
    task: float
    level: float
    rounds: Mapping[str, Tried]
    failed: Mapping[str, str]


@dataclass(frozen=True)
class Bench:
    """Where trials are made: the work, executors of so many workers by name, and a root that is deleted after."""

    config: TrainConfig
    work: Workload
    executors: Mapping[str, Executor]
    workers: int
    root: str

    def calibrated(self, strategies: Sequence[Strategy]) -> Calibration:
        """Measure in seconds what strategies are predicted from."""
        here, cluster = self.executors["inline"], self.executors["graph"]
        # All at once, as they will work: what workers share, cores and memory, they share then, too.
        paces = cluster.each(self._pacer(self.workers, 1, self.workers))
        # After them: workers that have just begun still import, which takes cores.
        alone = {
            threads: here.each(self._pacer(1, threads, 1))["this process"]
            for threads in sorted({each.threads for each in strategies if each.executor == "inline"})
        }
        task, level = (_seconds_of_tasks(cluster, tasks) / tasks for tasks in (TASKS, 1))
        machines = len({urlsplit(address).hostname for address in paces})
        crowded = self.workers > machines * next(iter(paces.values())).cores
        together = (Pace.mean if crowded else Pace.slowest)(list(paces.values()))
        measured = Calibration(self.workers, machines, alone, together, task, level, {}, {})
        left = memory_left(together)
        fitting = [each for each in strategies if memory_needed(each, self.work, together) <= left]
        return self.trying([strategy for strategy in fitting if strategy.is_tried], measured)

    def trying(self, strategies: Sequence[Strategy], measured: Calibration, turns: int = 1) -> Calibration:
        """What was measured, and rounds of strategies: by turns, since a machine changes its pace meanwhile."""
        trials: dict[str, list[Tried]] = {}
        failed = dict(measured.failed)
        for strategy in [*strategies] * turns:
            if strategy.name in failed:
                continue
            try:
                trial = self.tried(strategy, SECONDS / turns)
                trials.setdefault(strategy.name, []).append(trial)
            except RoundweaveError as error:
                failed[strategy.name] = str(error)
        rounds = {name: Tried.of(each) for name, each in trials.items()}
        return replace(measured, rounds={**measured.rounds, **rounds}, failed=failed)

    def sized(self, kind: str, sizes: Sequence[Size]) -> dict[Size, Tried]:
        """Rounds on so many partitions, of so many steps of each."""
        return {
            (partitions, steps): self.tried(
                base(kind, partitions) if steps == 1 else local(self.work, kind, partitions, steps)
            )
            for partitions, steps in sizes
        }

    def tried(self, strategy: Strategy, seconds: float = SECONDS) -> Tried:
        """Rounds of a strategy for so many seconds."""
        config = strategy.configured(self.config, self.work, **TRIAL, root=self.root)
        return tried(config, self.executors[strategy.executor], seconds)

    def _pacer(self, partitions: int, threads: int, processes: int) -> partial[Pace]:
        """What measures the pace of a process that maps one of so many partitions."""
        works = {steps: self._work(partitions, threads, steps) for steps in (FEW, MANY)}
        return partial(pace, works, processes, self.root)

    def _work(self, partitions: int, threads: int, steps: int) -> Work:
        """The work of so many local steps a round."""
        mapped = replace(local(self.work, "inline", partitions, steps), threads=threads)
        return work_of(resolve(mapped.configured(self.config, self.work, **TRIAL)), self.executors["inline"])[0]


def memory_needed(strategy: Strategy, work: Workload, pace: Pace) -> int:
    """Bytes that a process has at most: what it has by now, the state several times, the data."""
    return pace.resident + COPIES * work.state // strategy.ranks + work.data


def memory_left(pace: Pace) -> int:
    """Bytes that a process may have at most."""
    return pace.resident + pace.available


def _seconds_of_tasks(cluster: Executor, tasks: int) -> float:
    """Seconds of so many tasks that do nothing, the median."""
    taken = []
    for _ in range(TIMES):
        began = time.perf_counter()
        cluster.gather(nothing, range(tasks))
        taken.append(time.perf_counter() - began)
    return statistics.median(taken)
