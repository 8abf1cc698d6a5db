"""Finds the run that a configuration trains now: its name, its start, and what is stored of it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, TypeVar

from roundweave.flows.config.plugins import active_plugins, check_fits, failing_by_name, through
from roundweave.flows.config.train import Location, TrainConfig
from roundweave.flows.reporting.listening import notice, notify_name
from roundweave.storage.errors import ExperimentDiffers, StoreError, UsageError
from roundweave.storage.runs.names import (
    aliases,
    holder_of,
    is_run,
    new_name,
    run_address,
    stored_round,
    which_round,
)
from roundweave.storage.runs.run import StoredRun, open_stored
from roundweave.tasks.own_code.code import is_reference, short_name

Run = TypeVar("Run")


def configure(config: TrainConfig, more: Sequence[Any] = ()) -> TrainConfig:
    """Return the configuration of the run to train now, after its plugins and `more` have changed it.

    A configuration without a name gets a new, unused one, made from the names of the algorithm and the network.
    The function is idempotent. Raises `UsageError`.
    """
    check_fits(config, more)
    config = through(config, (*active_plugins(config), *more), "configure")
    if config.address:
        return config
    if config.name:
        Location(name=config.name)
        notify_name(config.name)
        return config
    model = config.model
    if isinstance(model, str) and is_reference(model):
        model = model.rpartition(":")[2]
    algorithm = Path(config.algorithm.label).name.replace(".py:", ".")
    return config.model_copy(update={"name": new_name(config.root, algorithm, short_name(model))})


def find(config: TrainConfig, more: Sequence[Any] = ()) -> tuple[TrainConfig, StoredRun | None]:
    """Return the configuration of the run to train now, and the stored run of its name, None if it is new.

    `config` comes from `configure`. The name, the number of rounds and the start are decided here. Raises
    `Skipped` if a plugin says so.
    """
    while True:
        run = _stored(config)
        found = config.model_copy(update={"start_from": _start(config, run)})
        found = through(found, (*active_plugins(config), *more), "found", run)
        if found.name == config.name:
            return found, run
        config = found.model_copy(update={"start_from": config.start_from})  # the new name has no start yet


def address_of_run(config: TrainConfig) -> str:
    """Return the address of the run of a configuration with a name."""
    return config.address or run_address(config.root, config.name or "")


def train_past_others(train: Callable[[TrainConfig], Run], config: TrainConfig) -> Run:
    """Return what `train` returns for a configuration, or for a replacement if its run is of another experiment.

    Raises `ExperimentDiffers` unless a plugin gives a replacement.
    """
    try:
        return train(config)
    except ExperimentDiffers as error:
        other: TrainConfig | None = next(_others(config, error), None)
        if other is None:
            raise
        return train_past_others(train, other)


def _others(config: TrainConfig, error: ExperimentDiffers) -> Iterator[TrainConfig]:
    for plugin in active_plugins(config):
        with failing_by_name(plugin):
            other = plugin.past(config, error)
        if other is not None:
            yield other


def is_pattern(start: Any) -> bool:
    """Tell whether `start` names a round of the newest run that matches a pattern, such as ``nightly-*@-1``."""
    stored = stored_round(start) if isinstance(start, str) else None
    return stored is not None and "*" in stored[0]


def is_alias(config: TrainConfig) -> bool:
    """Tell whether `start_from` names a round of an existing alias."""
    stored = stored_round(config.start_from) if isinstance(config.start_from, str) else None
    if stored is None or is_run(run_address(config.root, stored[0])):
        return False
    return stored[0] in aliases(config.root)


def _stored(config: TrainConfig) -> StoredRun | None:
    """Return the stored run of a configuration with a name, None if there is none yet.

    Raises `NotARun` for a lost run, and `UsageError` for the name of an alias.
    """
    address = address_of_run(config)
    if config.address or is_run(address):
        return StoredRun(address)
    if config.name in aliases(config.root):
        raise UsageError(f"{config.name} is an alias under {config.root}; give the run another --name")
    return None


def _start(config: TrainConfig, run: StoredRun | None) -> Any:
    """Return `start_from` with a pattern replaced by the newest complete run, or an alias by its holder.

    Returns None if there is no such run. An existing run keeps the start that it recorded.
    """
    alias = is_alias(config)
    if not alias and not is_pattern(config.start_from):
        return config.start_from
    if run is not None:
        return TrainConfig(start_from=run.config.get("start_from")).start_from
    if alias:
        return _start_of_alias(config)
    from roundweave.storage.runs.listing import looked_through

    pattern, _, which = str(config.start_from).rpartition("@")
    for name, newest in reversed(looked_through(config.root, pattern).items()):
        try:
            if isinstance(newest, StoreError):
                raise newest
            if newest.status == "complete":
                return f"{newest.address}@{which}"
        except StoreError as error:
            notice(f"{name} is skipped: {error}")
    notice(f"no run {pattern} is complete under {config.root}; {config.name} begins without start_from")
    return None


def _start_of_alias(config: TrainConfig) -> str | None:
    """Return the round of the run that holds the alias in `start_from`; None, with a message, if nobody does."""
    alias, _, which = str(config.start_from).rpartition("@")
    if holder_of(config.root, alias):
        run = open_stored(alias, config.root)
        return f"{run.address}@{run.round(which_round(which)).number}"
    notice(f"no run is {alias} under {config.root} yet; {config.name} begins without start_from")
    return None
