"""The work and the cluster measured: what predictions are made from."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from flows.config.resolving import resolve, work_of
from flows.config.train import TrainConfig
from flows.planning.strategies import Strategy, base
from flows.planning.trying import Tried, trial_root, tried
from storage.errors import RoundweaveError
from tasks.executors.base import Executor
from tasks.executors.inline import InlineExecutor
from tasks.planning.measuring import Pace, pace
from tasks.rounds.job import Work

FEW, MANY = 2, 42
"""Local steps of two maps, whose difference is of steps alone."""


@dataclass(frozen=True)
class Calibration:
    """What was measured of a work on a cluster of so many workers.

    `alone` is the pace of a lone process by its number of threads, `together` that of workers which are all at
    work. `rounds` are those that were tried, by the name of their strategy, and `failed` says why others were not;
    `inline` are rounds of one step in this process.
    """

    workers: int
    alone: Mapping[int, Pace]
    together: Pace
    inline: Tried
    rounds: Mapping[str, Tried]
    failed: Mapping[str, str]


def calibrate(
    config: TrainConfig, strategies: Sequence[Strategy], executors: Mapping[str, Executor], workers: int
) -> Calibration:
    """Measure in seconds what strategies are predicted from, with executors of so many workers by name."""
    here, cluster = InlineExecutor(), executors["graph"]
    alone = {
        threads: here.each(_pacer(config, 1, threads, 1))["this process"]
        for threads in sorted({strategy.threads for strategy in strategies})
    }
    # All at once, as they will work: what workers share, cores and memory, they share then, too.
    together = Pace.slowest(list(cluster.each(_pacer(config, workers, 1, workers)).values()))
    rounds, failed = dict[str, Tried](), dict[str, str]()
    with trial_root(config.root) as root:
        inline = tried(base("inline", 1).configured(config, root=root, name=None), here)
        for strategy in (each for each in strategies if each.is_tried):
            trial = strategy.configured(config, root=root, name=None)
            try:
                rounds[strategy.name] = tried(trial, executors[strategy.executor])
            except RoundweaveError as error:
                failed[strategy.name] = str(error)
    return Calibration(workers, alone, together, inline, rounds, failed)


def _pacer(config: TrainConfig, partitions: int, threads: int, processes: int) -> partial[Pace]:
    """What measures the pace of a process that maps one of so many partitions."""
    works = (_work(config, partitions, threads, steps) for steps in (FEW, MANY))
    return partial(pace, *works, processes)


def _work(config: TrainConfig, partitions: int, threads: int, steps: int) -> Work:
    """The work of so many local steps a round."""
    local = Strategy("local", "inline", partitions, "fed_avg", steps, threads, {"local_steps": steps})
    return work_of(resolve(local.configured(config)), InlineExecutor())[0]
