"""Names, starts and lengths of runs whose configuration is trained repeatedly, as on a schedule."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar
from zoneinfo import ZoneInfo, available_timezones

from roundweave.flows.config.train import TODAY, TrainConfig
from roundweave.flows.reporting.listening import notice
from roundweave.storage.errors import ExperimentDiffers, RunBusy, StoreError, UsageError
from roundweave.storage.runs.listing import looked_through
from roundweave.storage.runs.names import is_run, new_name, run_address, stored_round
from roundweave.storage.runs.run import open_stored
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

    No run has the new name yet; it is made from those of the algorithm and the network.
    """
    if config.address:
        return config
    if config.name:
        return config.model_copy(update={"name": config.name.replace(TODAY, _today(config))})
    model = config.model
    if isinstance(model, str) and is_reference(model):
        model = model.rpartition(":")[2]
    algorithm = Path(config.algorithm.label).name.replace(".py:", ".")
    return config.model_copy(update={"name": new_name(config.root, algorithm, short_name(model))})


def as_scheduled(config: TrainConfig) -> TrainConfig:
    """The configuration of the run to train now, with its name, rounds and start decided; raises `Skipped`.

    Calling it again with its result changes nothing.
    """
    config = with_name(config)
    if config.address:
        return config
    changes = _on_complete(config)
    config = config.model_copy(update={"on_complete": None, **changes})
    return config.model_copy(update={"start_from": _start(config)})


@contextmanager
def skipped_if_busy(config: TrainConfig) -> Iterator[None]:
    """Raise `Skipped` instead of `RunBusy` if another process writes the run and `on_busy` is set."""
    try:
        yield
    except RunBusy as error:
        if config.on_busy is None:
            raise
        raise Skipped(f"{error}; skipped, as on_busy says", address(config)) from error


def _today(config: TrainConfig) -> str:
    """The date now, in the configuration's time zone or else this machine's."""
    zone = ZoneInfo(config.timezone) if config.timezone else None
    return datetime.fromtimestamp(time.time(), zone).strftime(DATE)


def machine_timezone() -> str:
    """The name of this machine's time zone, such as Europe/Berlin; raises `UsageError` if it has none."""
    place = os.environ.get("TZ") or os.path.realpath("/etc/localtime")
    name = place.rpartition("zoneinfo/")[2].lstrip(":")
    if name in available_timezones():
        return name
    raise UsageError(f"this machine's time zone, {place}, has no name; give --timezone, such as Europe/Berlin")


def address(config: TrainConfig) -> str:
    """The address of the run of a configuration, which must have a name."""
    return config.address or run_address(config.root, config.name or "")


def is_pattern(start: Any) -> bool:
    """Whether `start` names a round of the newest run whose name fits a pattern, such as ``nightly-*@-1``."""
    stored = stored_round(start) if isinstance(start, str) else None
    return stored is not None and "*" in stored[0]


def _on_complete(config: TrainConfig) -> dict[str, Any]:
    """The changes of the configuration that `on_complete` asks for if the run of this name exists."""
    if config.on_complete is None or not is_run(address(config)):
        return {}
    if config.on_complete == "new":
        return {"name": _dated(config)}
    run = open_stored(address(config))
    if config.on_complete == "extend":
        return {"rounds": run.rounds + config.rounds if run.status == "complete" else run.rounds}
    if run.status == "complete":
        raise Skipped(f"{run.name} is complete, {run.done} rounds; skipped, as on_complete says", run.address)
    return {}


def past_others(train: Callable[[TrainConfig], Run], config: TrainConfig) -> Run:
    """What `train` returns for a configuration, or for one with the next name where the run is another experiment.

    Only `on_complete` = new takes the next name; else `ExperimentDiffers` is raised.
    """
    try:
        return train(config)
    except ExperimentDiffers as error:
        if config.on_complete != "new":
            raise
        following = _following(config, f"{as_scheduled(config).name}")
        what, _, _ = str(error).rpartition("; ")  # its advice is followed already
        notice(f"{what}; {following} begins instead, as on_complete says")
        return past_others(train, config.model_copy(update={"name": following}))


def _dated(config: TrainConfig) -> str:
    """The first of ``NAME``, ``NAME-<date>``, ``NAME-<date>-2`` and so on that is not a complete run."""
    name = f"{config.name}"
    while _is_complete(run_address(config.root, name)):
        name = _following(config, name)
    return name


def _following(config: TrainConfig, name: str) -> str:
    """The name after this one: that of ``NAME`` has today's date, and then a number from 2 on."""
    today = _today(config)
    numbered = re.fullmatch(rf"(.*{today})(?:-(\d+))?", name)
    return f"{numbered[1]}-{int(numbered[2] or 1) + 1}" if numbered else f"{name}-{today}"


def _is_complete(address: str) -> bool:
    return is_run(address) and open_stored(address).status == "complete"


def _start(config: TrainConfig) -> Any:
    """The value of `start_from` with a pattern such as ``nightly-*@-1`` replaced by the newest complete run.

    None if there is no such run. An existing run keeps the start that it recorded.
    """
    if not is_pattern(config.start_from):
        return config.start_from
    if is_run(address(config)):
        return TrainConfig(start_from=open_stored(address(config)).config.get("start_from")).start_from
    pattern, _, which = str(config.start_from).rpartition("@")
    for name, run in reversed(looked_through(config.root, pattern).items()):
        try:
            if isinstance(run, StoreError):
                raise run
            if run.status == "complete":
                return f"{run.address}@{which}"
        except StoreError as error:
            notice(f"{name} is passed over: {error}")
    notice(
        f"no run {pattern} is complete under {config.root}; {config.name} begins as if start_from were not given"
    )
    return None
