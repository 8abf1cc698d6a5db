"""Which run a configuration trains now: its name, its length, its start, and what there is of it already."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from roundweave.flows.config.train import TODAY, TrainConfig
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import ExperimentDiffers, StoreError, UsageError
from roundweave.storage.runs.names import is_run, new_name, run_address, stored_round
from roundweave.storage.runs.run import StoredRun
from roundweave.tasks.own_code.code import is_reference, short_name

Run = TypeVar("Run")

DATE = "%Y%m%d"
"""The format of a date in a run's name."""


class Skipped(Exception):
    """Raised if the configuration says to skip this training; `address` is that of the existing run."""

    def __init__(self, text: str, address: str) -> None:
        super().__init__(text)
        self.address = address


def with_name(config: TrainConfig) -> TrainConfig:
    """The configuration with {date} in its name replaced by today's date; without a name it gets a new one.

    No run has the new name yet; it is made from those of the algorithm and the network. The first time, `schedule`
    becomes the pattern of all names that the configuration gives to runs, from night to night.
    """
    if config.address:
        return config
    if config.name:
        dated = re.escape(config.name).replace(re.escape(TODAY), r"\d{8}")
        schedule = config.schedule or dated + r"(-\d{8})?(-\d+)?" * (config.on_complete == "new")
        name = config.name.replace(TODAY, _today(config))
        return config.model_copy(update={"name": name, "schedule": schedule})
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
        whole = run.status == "complete"
        if whole and config.on_complete == "skip":
            text = f"{run.name} is complete, {run.done} rounds; skipped, as on_complete says"
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


def machine_timezone() -> str:
    """The name of this machine's time zone, such as Europe/Berlin; raises `UsageError` if it has none."""
    place = os.environ.get("TZ") or os.path.realpath("/etc/localtime")
    name = place.rpartition("zoneinfo/")[2].lstrip(":")
    if name in available_timezones():
        return name
    raise UsageError(f"this machine's time zone, {place}, has no name; give --timezone, such as Europe/Berlin")


def _stored(config: TrainConfig) -> StoredRun | None:
    """The run of a configuration that has a name, None if there is none yet; raises `NotARun` for a lost one."""
    address = address_of_run(config)
    return StoredRun(address) if config.address or is_run(address) else None


def _today(config: TrainConfig) -> str:
    """The date now, in the configuration's time zone or else this machine's."""
    zone = ZoneInfo(config.timezone) if config.timezone else None
    return datetime.fromtimestamp(time.time(), zone).strftime(DATE)


def _following(config: TrainConfig) -> str:
    """The name after this one: that of ``NAME`` has today's date, and then a number from 2 on."""
    today = _today(config)
    numbered = re.fullmatch(rf"(.*{today})(?:-(\d+))?", f"{config.name}")
    return f"{numbered[1]}-{int(numbered[2] or 1) + 1}" if numbered else f"{config.name}-{today}"


def _start(config: TrainConfig, run: StoredRun | None) -> Any:
    """The value of `start_from` with a pattern such as ``nightly-*@-1`` replaced by the newest complete run.

    None if there is no such run. An existing run keeps the start that it recorded.
    """
    if not is_pattern(config.start_from):
        return config.start_from
    if run is not None:
        return TrainConfig(start_from=run.config.get("start_from")).start_from
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
