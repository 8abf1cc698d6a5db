"""``roundweave.fork``: configures a run that begins with a stored round of another run and has its experiment."""

from __future__ import annotations

from typing import Any

from roundweave.flows.config.recorded import recorded_experiment
from roundweave.flows.config.train import TrainConfig
from roundweave.storage.errors import UsageError
from roundweave.storage.places.base import Where, address_of
from roundweave.storage.runs.names import default_root, stored_round
from roundweave.storage.runs.run import open_stored
from roundweave.tasks.networks.start import find_fork


def fork(place: str, root: Where | None = None, trust: bool = False, **changes: Any) -> TrainConfig:
    """The configuration of a run that begins with a stored round and has the experiment of its run.

    Args:
        place: The round, such as ``RUN@12``, ``RUN@last`` or ``RUN@best``.
        root: The folder or address under which runs lie; by default ``$ROUNDWEAVE_ROOT``, or else ``runs``.
        trust: Whether code stored in a run outside the root may be executed.
        changes: Fields and options of the algorithm that differ. Another algorithm keeps none of the old options.

    Returns:
        The configuration, with the fields of a new run's execution at their defaults.

    Raises:
        UsageError: `place` is no stored round, a change does not fit, or the code needs `trust`.
        NotARun: There is no such run.
        RoundMissing: The run has no such round.

    Example:
        >>> config = rw.fork("first@2", lr=0.05, rounds=2, executor="inline")
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
