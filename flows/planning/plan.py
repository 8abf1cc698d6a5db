"""``roundweave.plan``: measures a work and a cluster, predicts what each strategy takes, and chooses one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from flows.config.train import Planned, TrainConfig
from flows.planning.calibrating import Bench, Calibration
from flows.planning.choosing import choose, close, reason
from flows.planning.predicting import Prediction, predict
from flows.planning.strategies import base, strategies
from flows.planning.trying import trial_root
from flows.planning.workload import Workload, workload
from flows.reporting.listening import notice
from tasks.executors.base import Executor

TURNS = 2
"""In so many turns strategies are tried that are close to one another."""


@dataclass(frozen=True)
class Plan:
    """What each strategy will take, the one that is `chosen`, and the `reason` in a sentence."""

    config: TrainConfig
    work: Workload
    measured: Calibration
    predictions: tuple[Prediction, ...]
    chosen: Prediction
    reason: str

    @property
    def planned(self) -> TrainConfig:
        """The configuration that does the work by the chosen strategy."""
        return self.by(self.chosen)

    def by(self, prediction: Prediction) -> TrainConfig:
        """The configuration that does the work by a strategy, with what was predicted of it."""
        planned = Planned(
            strategy=prediction.strategy.name,
            workers=self.measured.workers,
            seconds=prediction.seconds,
            fastest=prediction.fastest,
            slowest=prediction.slowest,
            rounds_of_epoch=prediction.strategy.rounds(self.work),
            epochs={each.strategy.name: each.epoch for each in self.predictions if not each.refused},
            refused={each.strategy.name: each.refused for each in self.predictions if each.refused},
            reason=self.reason,
        )
        return prediction.strategy.configured(self.config, self.work, planned=planned)


def plan(config: TrainConfig) -> Plan:
    """Measure for some seconds, with all workers at work at once, and predict; nothing is kept.

    Raises `UsageError` where the work depends on how it is distributed, `ClusterError` where nothing can do it.
    """
    work = workload(config)
    with bench_for(config, work) as bench:
        candidates = list(strategies(work, bench.workers, os.cpu_count() or 1))
        # A lone worker has no strategy of one step, from which what a round takes besides its maps is known.
        known = [] if bench.workers > 1 else [base("inline", 1)]
        measured = bench.calibrated([*known, *candidates])
        rivals = close([predict(each, work, measured) for each in candidates])
        measured = bench.trying([each.strategy for each in rivals if not each.strategy.is_tried], measured, TURNS)
    predictions = tuple(predict(each, work, measured) for each in candidates)
    chosen = choose(predictions)
    return Plan(config, work, measured, predictions, chosen, reason(chosen, predictions))


@contextmanager
def bench_for(config: TrainConfig, work: Workload) -> Iterator[Bench]:
    """Executors on the same cluster, and a root for trials."""
    from tasks.clusters.connecting import connect
    from tasks.clusters.waiting import usable_workers
    from tasks.executors.gang import GangExecutor
    from tasks.executors.graph import GraphExecutor
    from tasks.executors.inline import InlineExecutor

    cluster = connect(config.scheduler, config.workers, config.private, config.wait_for_workers)
    with cluster as client, trial_root(config.root) as root:
        executors: dict[str, Executor] = {
            "inline": InlineExecutor(config.worker_timeout, notice),
            "graph": GraphExecutor(client, config.worker_timeout, notice),
            "gang": GangExecutor(client, config.worker_timeout, notice, plain=config.plain_ranks),
        }
        yield Bench(config, work, executors, len(usable_workers(client)), root)
