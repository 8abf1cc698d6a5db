"""The first step of a training: its plan, with the strategy that `auto` stands for."""

from __future__ import annotations

from collections.abc import Sequence

from roundweave.flows.config.dates import dated, is_dated
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe_here
from roundweave.flows.planning.naming import is_alias, is_pattern, scheduled
from roundweave.flows.planning.plan import Plan, configure, plan, plan_rounds
from roundweave.flows.plugins.base import Plugin
from roundweave.flows.reporting.listening import notice
from roundweave.flows.reporting.log_file import LogFile
from roundweave.storage.errors import DataError
from roundweave.tasks.algorithms.table import AUTO


def plan_training(config: TrainConfig, plugins: Sequence[Plugin] = ()) -> Plan:
    """The plan of the run to train now; `auto` is replaced by the strategy chosen for it.

    Raises `Skipped` if the configuration says to skip the training.
    """
    if config.algorithm.name == AUTO:
        from roundweave.flows.plugins.race.choosing import chosen

        config = chosen(*scheduled(config))
    return plan(config, plugins)


def check(config: TrainConfig) -> None:
    """Raise an error for mistakes in a configuration, its code, its data or its network before it is trained.

    Data that each partition loads by itself are not read. Data of a date may come later, which is said.
    """
    if config.log_file:
        LogFile(config.log_file).close()
    configure(dated(config))
    daily = is_dated(config.data) or is_dated(config.data_options)
    if is_pattern(config.start_from) or is_alias(config):
        config = config.model_copy(update={"start_from": None})
    try:
        if config.algorithm.name == AUTO:
            from roundweave.flows.plugins.race.strategies import workload

            workload(dated(config))
        else:
            describe_here(plan_rounds(dated(config)))
    except DataError as error:
        if not daily:
            raise
        notice(f"the data of today cannot be read yet, those of a day are read on that day: {error}")
