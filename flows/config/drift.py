"""How the examples of a new run differ from those of the run that it begins with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from roundweave.flows.config.train import TrainConfig
from roundweave.storage.errors import CheckpointError, ModelError, UsageError, cut, unless_damaged
from roundweave.storage.rounds.columns import drifted
from roundweave.storage.runs.names import stored_round
from roundweave.storage.runs.run import open_stored
from roundweave.tasks.data.description import Description
from roundweave.tasks.networks.start import Start


def compared(config: TrainConfig, description: Description) -> Description:
    """A new run's description, compared with the columns of its parent, if it has one that recorded them.

    Raises `UsageError` if it has one that did not, and is to be rejected for what has drifted.
    """
    start, columns = config.start_from, description.columns
    if not (columns.columns and isinstance(start, Start)):
        return description
    stored = stored_round(start.reference)
    known = stored and unless_damaged(lambda: open_stored(stored[0]).columns)
    if known:
        return replace(description, columns=replace(columns, drift=drifted(known.columns, columns.columns)))
    if config.drift == "refuse":
        raise UsageError(
            f"drift = refuse: {start.reference} has no description of its examples to compare with; train one "
            "night with drift = tell"
        )
    return description


def is_refused(config: TrainConfig, description: Description) -> bool:
    """Whether a new run is rejected, as its examples have drifted too far."""
    return config.drift == "refuse" and bool(description.columns.refusals)


@contextmanager
def saying_drift(description: Description) -> Iterator[None]:
    """A context in which an error of a network, or of what it is to begin with, first says what has drifted."""
    try:
        yield
    except (ModelError, CheckpointError) as error:
        if not (lines := cut(description.columns.lines)):
            raise
        raise type(error)(f"{'; '.join(lines)}: {error}") from error
