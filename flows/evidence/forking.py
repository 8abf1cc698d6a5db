"""``roundweave.fork``: configures a run that begins with a stored round of another run and has its experiment."""

from __future__ import annotations

from typing import Any

from flows.config.recorded import recorded_experiment
from flows.config.train import TrainConfig
from storage.errors import UsageError
from storage.places.addresses import Where, address_of
from storage.runs.names import default_root, stored_round
from storage.runs.run import open_stored
from tasks.networks.start import find_fork


def fork(place: str, root: Where | None = None, trust: bool = False, **changes: Any) -> TrainConfig:
    """The configuration of a run that begins with a stored round such as ``RUN@12``, ``RUN@last``, ``RUN@best``.

    The experiment is that of the stored run, including its code, with `changes`, which may be options of the
    algorithm. If the algorithm itself is changed, none of the old options are taken. Nothing of the stored run's
    execution is used. Raises `UsageError`, also for code from outside the root without `trust`, `NotARun` and
    `RoundMissing`.
    """
    stored = stored_round(place)
    if stored is None:
        raise UsageError(
            f"{place} is no stored round such as RUN@12; name one, as {place}@last, or give a file by --start-from"
        )
    if "start_from" in changes:
        raise UsageError(f"a run begins with {place} or with {changes['start_from']}, not with both")
    folder = address_of(root or default_root())
    run = open_stored(stored[0], folder)
    start = find_fork(run, stored[1])
    experiment = recorded_experiment(run, folder, trust, changes)
    if experiment.get("recombined"):
        experiment["recombined"] = {**experiment["recombined"], "before": 0}
    return TrainConfig(**{"root": folder} | experiment | {"start_from": start})
