"""Whether the examples of a new run are those of the run that it begins with."""

from __future__ import annotations

from roundweave.flows.config.base import Skipped
from roundweave.flows.config.recorded import other_examples
from roundweave.flows.planning.describing import Described
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import stored_round
from roundweave.storage.runs.run import open_stored


def check_changed(described: Described) -> None:
    """Raise `Skipped` where a new run's examples are those of the run that it begins with.

    Raises `UsageError` where it begins with a file, whose examples nobody knows.
    """
    start, description = described.plan.start, described.description
    if start is None:
        return
    stored = stored_round(start.reference)
    if stored is None:
        raise UsageError(
            f"on_unchanged needs the examples of a run, and {start.reference} is a file; leave it out"
        )
    parent = open_stored(stored[0])
    if not other_examples(parent.attributes, description.digest, description.files):
        same = f"the examples are those of {parent.name}, digest {description.digest[:12]}"
        raise Skipped(f"{same}; skipped, as on_unchanged says", parent.address)
