"""Forks: runs that begin with a stored round of another one."""

from __future__ import annotations

from typing import Any

from roundweave.flows.config.recorded import forked
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.stored import open_run
from roundweave.storage.places.base import Where


def fork(place: str, root: Where | None = None, trust: bool = False, **changes: Any) -> TrainConfig:
    """Return the configuration of a run that begins with a stored round and has the experiment of its run.

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
    return forked(place, root, trust, changes, open_run)
