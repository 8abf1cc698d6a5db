"""The check of a configuration before it is served: what can be known of its trainings now."""

from __future__ import annotations

from roundweave.flows.config.plugins import active_plugins
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.planning.describing import describe_here
from roundweave.flows.planning.naming import is_alias, is_pattern
from roundweave.flows.planning.plan import plan_rounds
from roundweave.flows.plugins.scheduled.dates import dated, is_dated
from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import open_run
from roundweave.flows.training.hooks import around
from roundweave.storage.errors import DataError


def check(config: TrainConfig) -> None:
    """Raise an error for mistakes in a configuration, its code, its data or its network before it is trained.

    Data that each partition loads by itself are not read. Data of a date may come later, which is said.
    """
    daily = is_dated(config.data) or is_dated(config.data_options)
    if is_pattern(config.start_from) or is_alias(config):
        config = config.model_copy(update={"start_from": None})
    config = dated(config)
    with around(config):
        for plugin in active_plugins(config):
            config = plugin.configure(config)
    try:
        for plugin in active_plugins(config):
            config = plugin.rehearse(config)
        describe_here(plan_rounds(config, opened=open_run))
    except DataError as error:
        if not daily:
            raise
        notice(f"today's data cannot be read yet; each run reads the data of its own day: {error}")
