"""Which run a configuration trains now: its name, its length, its start, and what there is of it already."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import available_timezones

from roundweave.flows.config.dates import dated, moment
from roundweave.flows.config.train import DAY, Skipped, TrainConfig
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import ExperimentDiffers, StoreError, UsageError
from roundweave.storage.runs.names import aliases, find_run, holder_of, is_run, new_name, run_address, stored_round
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.own_code.code import is_reference, short_name

Run = TypeVar("Run")


def with_name(config: TrainConfig) -> TrainConfig:
    """The configuration with the dates of today; without a name it gets a new one, which no run has yet.

    It is made from those of the algorithm and the network.
    """
    config = dated(config)
    if config.address or config.name:
        return config
    model = config.model
    if isinstance(model, str) and is_reference(model):
        model = model.rpartition(":")[2]
    algorithm = Path(config.algorithm.label).name.replace(".py:", ".")
    return config.model_copy(update={"name": new_name(config.root, algorithm, short_name(model))})


def scheduled(config: TrainConfig) -> tuple[TrainConfig, StoredRun | None]:
    """The configuration of the run to train now, and what there is of that run, None if it is new.

    The name, the number of rounds and the start are decided. Calling it again with the configuration that it gives
    changes nothing. Raises `Skipped` where the configuration says so.
    """
    config = with_name(config)
    run = _stored(config)
    changes: dict[str, Any] = {"on_complete": None, "start_from": _start(config, run)}
    if run is not None and config.on_complete and not config.address:
        whole = run.status in ("complete", "rejected")
        if whole and config.on_complete == "skip":
            text = f"{run.name} is {run.status}, {run.done} rounds; skipped, as on_complete says"
            raise Skipped(text, run.address)
        if whole and config.on_complete == "new":
            return scheduled(config.model_copy(update={"name": _following(config)}))
        if config.on_complete == "extend":
            changes["rounds"] = run.rounds + (config.rounds if whole else 0)
    return config.model_copy(update=changes), run


def address_of_run(config: TrainConfig) -> str:
    """The address of the run of a configuration, which must have a name."""
    return config.address or run_address(config.root, config.name or "")


def past_others(train: Callable[[TrainConfig], Run], config: TrainConfig) -> Run:
    """What `train` returns for a configuration, or for one with the next name where the run is another experiment.

    Only `on_complete` = new takes the next name; else `ExperimentDiffers` is raised.
    """
    try:
        return train(config)
    except ExperimentDiffers as error:
        if config.on_complete != "new":
            raise
        taken, _ = scheduled(config)
        following = _following(taken)
        what, _, _ = str(error).rpartition("; ")  # its advice is followed already
        notice(f"{what}; {following} begins instead, as on_complete says")
        return past_others(train, config.model_copy(update={"name": following, "schedule": taken.schedule}))


def is_pattern(start: Any) -> bool:
    """Whether `start` names a round of the newest run whose name fits a pattern, such as ``nightly-*@-1``."""
    stored = stored_round(start) if isinstance(start, str) else None
    return stored is not None and "*" in stored[0]


def is_alias(config: TrainConfig) -> bool:
    """Whether `start_from` names a round of an alias: one that there is, or that this run may take."""
    stored = stored_round(config.start_from) if isinstance(config.start_from, str) else None
    if stored is None or is_run(run_address(config.root, stored[0])):
        return False
    return stored[0] == config.promote or stored[0] in aliases(config.root)


def machine_timezone() -> str:
    """The name of this machine's time zone, such as Europe/Berlin; raises `UsageError` if it has none."""
    place = os.environ.get("TZ") or os.path.realpath("/etc/localtime")
    name = place.rpartition("zoneinfo/")[2].lstrip(":")
    if name in available_timezones():
        return name
    raise UsageError(f"this machine's time zone, {place}, has no name; give --timezone, such as Europe/Berlin")


def _stored(config: TrainConfig) -> StoredRun | None:
    """The run of a configuration that has a name, None if there is none yet.

    Raises `NotARun` for a lost one, and `UsageError` for the name of an alias.
    """
    address = address_of_run(config)
    if config.address or is_run(address):
        return StoredRun(address)
    if config.name in aliases(config.root):
        raise UsageError(f"{config.name} is an alias under {config.root}; give the run another --name")
    if config.promote and is_run(run_address(config.root, config.promote)):
        raise UsageError(f"promote = {config.promote}: there is a run of that name under {config.root}")
    return None


def _following(config: TrainConfig) -> str:
    """The name after this one: that of ``NAME`` has today's date, and then a number from 2 on."""
    today = moment(config).strftime(DAY)
    numbered = re.fullmatch(rf"(.*{today})(?:-(\d+))?", f"{config.name}")
    return f"{numbered[1]}-{int(numbered[2] or 1) + 1}" if numbered else f"{config.name}-{today}"


def _start(config: TrainConfig, run: StoredRun | None) -> Any:
    """The value of `start_from` with a pattern or an alias replaced by the newest complete run, or the holder.

    None if there is no such run. An existing run keeps the start that it recorded.
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
            notice(f"{name} is passed over: {error}")
    notice(
        f"no run {pattern} is complete under {config.root}; {config.name} begins as if start_from were not given"
    )
    return None


def _start_of_alias(config: TrainConfig) -> str | None:
    """The round of the run that has the alias which `start_from` names; None, with a line, if nobody has it."""
    alias, _, which = str(config.start_from).rpartition("@")
    if holder_of(config.root, alias):
        return f"{find_run(alias, config.root)}@{which}"
    notice(f"nobody is {alias} under {config.root} yet; {config.name} begins as if start_from were not given")
    return None
