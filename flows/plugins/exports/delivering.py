"""The end of a training: a run that is accepted is exported to all that its configuration says."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from roundweave.flows.plugins.exports import Exports
from roundweave.flows.plugins.exports.trackers import TRACKERS, tracked
from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import Run
from roundweave.storage.errors import PlaceError, RoundweaveError
from roundweave.storage.runs.names import holder_of


def deliver(run: Run, places: Exports) -> None:
    """Export the last round of a run that ended and was not rejected; raises `PlaceError` for what failed."""
    failed = []
    for to in places:
        try:
            notice(f"{run.name} is now in {_delivered(run, to)}")
        except RoundweaveError as error:
            failed.append(f"{to} ({error})")
    if failed:
        again = f"`roundweave resume {run.name}` does it again"
        raise PlaceError(f"{run.name} is complete, but not exported to {', '.join(failed)}; {again}")


def _delivered(run: Run, to: str) -> str:
    """Export a run, and return where it is; MLflow gets its model, too, where the run may take an alias."""
    from roundweave.flows.plugins.exports.folders import export_round, write_folder

    if to not in TRACKERS:
        export_round(run, run.round(-1), to, trust=True)
        return to
    promote = run.config.get("promote")
    if to != "mlflow" or not promote:
        return tracked(run, to)
    with TemporaryDirectory() as place:
        folder = write_folder(run, run.round(-1), str(Path(place, "model")), trust=True)
        alias = promote if holder_of(run.root, promote) == run.name else None
        return tracked(run, to, folder=folder, alias=alias)
