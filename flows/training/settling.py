"""The first step of a training: its configuration resolved, with the strategy that `auto` stands for."""

from __future__ import annotations

from roundweave.flows.config.dates import dated, is_dated
from roundweave.flows.config.exports import check_export
from roundweave.flows.config.gate import check_functions
from roundweave.flows.config.resolving import Resolved, resolve, resolve_work
from roundweave.flows.config.scheduled import is_alias, is_pattern, scheduled
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.reporting.listening import notice
from roundweave.flows.reporting.log_file import LogFile
from roundweave.flows.stored import open_run
from roundweave.storage.errors import DataError
from roundweave.tasks.algorithms.table import AUTO
from roundweave.tasks.data.partitions import forget_examples


def settled(config: TrainConfig) -> Resolved:
    """The resolved configuration of the run to train now; `auto` is replaced by the strategy chosen for it.

    Raises `Skipped` if the configuration says to skip the training.
    """
    forget_examples()  # this process may have trained before on a file that was written anew
    _check_end(config)
    if config.algorithm.name == AUTO:
        from roundweave.flows.planning.plan import chosen

        config = chosen(*scheduled(config))
    return resolve(config, by_worker=True, opened=open_run)


def _check_end(config: TrainConfig) -> None:
    """Raise an error for what could only fail when the training has ended: its gate's functions, its exports."""
    check_functions(config.accept or ())
    for to in config.export:
        check_export(to)


def check(config: TrainConfig) -> None:
    """Raise an error for mistakes in a configuration, its code, its data or its network before it is trained.

    Data that each partition loads by itself are not read. Data of a date may come later, which is said.
    """
    if config.log_file:
        LogFile(config.log_file).close()
    _check_end(dated(config))
    daily = is_dated(config.data) or is_dated(config.data_options)
    if is_pattern(config.start_from) or is_alias(config):
        config = config.model_copy(update={"start_from": None})
    try:
        if config.algorithm.name == AUTO:
            from roundweave.flows.planning.strategies import workload

            workload(dated(config))
        else:
            resolve_work(dated(config), opened=open_run)
    except DataError as error:
        if not daily:
            raise
        notice(f"the data of today cannot be read yet, those of a day are read on that day: {error}")
