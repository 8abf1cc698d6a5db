"""``roundweave.plan``: measures a work and a cluster, predicts what each strategy takes, and chooses one."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from math import prod

from flows.config.resolving import resolve
from flows.config.train import Planned, TrainConfig
from flows.planning.calibrating import Calibration, calibrate
from flows.planning.choosing import choose, reason
from flows.planning.predicting import Prediction, Size, predict
from flows.planning.strategies import base, batch_size, strategies
from flows.reporting.listening import notice
from storage.errors import UsageError
from tasks.executors.base import Executor


@dataclass(frozen=True)
class Plan:
    """What each strategy will take, the one that is `chosen`, and the `reason` in a sentence."""

    config: TrainConfig
    measured: Calibration
    predictions: tuple[Prediction, ...]
    chosen: Prediction
    reason: str

    @property
    def planned(self) -> TrainConfig:
        """The configuration that does the work by the chosen strategy."""
        chosen = self.chosen
        planned = Planned(
            strategy=chosen.strategy.name,
            seconds=chosen.seconds,
            fastest=chosen.fastest,
            slowest=chosen.slowest,
            workers=self.measured.workers,
            reason=self.reason,
        )
        return chosen.strategy.configured(self.config, planned=planned)


def plan(config: TrainConfig) -> Plan:
    """Measure for some seconds, with all workers at work at once, and predict; nothing is kept.

    Raises `UsageError` where each partition is loaded on its own: how many there are is then not to be chosen.
    """
    resolved = resolve(base("inline", 1).configured(config))
    if resolved.description is None or resolved.objective is None:
        raise UsageError("plan deals examples to as many partitions as fit, and these data give each its own")
    description = resolved.description
    state = resolved.objective.initial()
    size = Size(
        description.examples,
        batch_size(config),
        sum(vector.nbytes for vector in [*state.params.values(), *state.buffers.values()]),
        4 * description.examples * prod(description.inputs),
    )
    with _executors(config) as (executors, workers):
        candidates = list(strategies(config, workers, os.cpu_count() or 1, description.examples))
        measured = calibrate(config, candidates, executors, workers)
    predictions = tuple(predict(each, size, measured) for each in candidates)
    chosen = choose(predictions)
    return Plan(config, measured, predictions, chosen, reason(chosen, predictions))


@contextmanager
def _executors(config: TrainConfig) -> Iterator[tuple[Mapping[str, Executor], int]]:
    """Executors on the same cluster, by name, and how many workers it has."""
    from tasks.clusters.connecting import connect
    from tasks.clusters.waiting import usable_workers
    from tasks.executors.gang import GangExecutor
    from tasks.executors.graph import GraphExecutor

    with connect(config.scheduler, config.workers) as client:
        kinds = {"graph": GraphExecutor, "gang": GangExecutor}
        made = {name: kind(client, config.worker_timeout, notice) for name, kind in kinds.items()}
        yield made, len(usable_workers(client))
