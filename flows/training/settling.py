"""The first step of a training: its configuration resolved, with the strategy that `auto` stands for."""

from __future__ import annotations

from roundweave.flows.config.resolving import Resolved, resolve, resolve_work
from roundweave.flows.config.scheduled import is_pattern, scheduled
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.reporting.log_file import LogFile
from roundweave.tasks.algorithms.table import AUTO
from roundweave.tasks.data.partitions import forget_examples


def settled(config: TrainConfig) -> Resolved:
    """The resolved configuration of the run to train now; `auto` is replaced by the strategy chosen for it.

    Raises `Skipped` if the configuration says to skip the training.
    """
    forget_examples()  # this process may have trained before on a file that was written anew
    if config.algorithm.name == AUTO:
        from roundweave.flows.planning.plan import chosen

        config = chosen(*scheduled(config))
    return resolve(config, by_worker=True)


def check(config: TrainConfig) -> None:
    """Raise an error for mistakes in a configuration, its code, its data or its network before it is trained.

    Data that each partition loads by itself are not read.
    """
    if config.log_file:
        LogFile(config.log_file).close()
    if is_pattern(config.start_from):
        config = config.model_copy(update={"start_from": None})
    if config.algorithm.name == AUTO:
        from roundweave.flows.planning.strategies import workload

        workload(config)
    else:
        resolve_work(config)
