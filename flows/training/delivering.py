"""The end of a training: a run that is accepted is exported to all that its configuration says."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from roundweave.flows.config.train import TrainConfig
from roundweave.flows.exporting.trackers import TRACKERS, tracked
from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import Run
from roundweave.storage.errors import PlaceError, RoundweaveError
from roundweave.storage.runs.names import holder_of


def deliver(run: Run, config: TrainConfig) -> None:
    """Export the last round of a run that ended and was not rejected; raises `PlaceError` for what failed."""
    failed = []
    for to in config.export if run.status != "rejected" else ():
        try:
            notice(f"{run.name} is now in {_delivered(run, to, config)}")
        except RoundweaveError as error:
            failed.append(f"{to} ({error})")
    if failed:
        again = f"`roundweave resume {run.name}` does it again"
        raise PlaceError(f"{run.name} is complete, but not exported to {', '.join(failed)}; {again}")


def _delivered(run: Run, to: str, config: TrainConfig) -> str:
    """Export a run, and return where it is; MLflow gets its model, too, where the run may take an alias."""
    from roundweave.flows.exporting.folders import export_round, write_folder

    if to not in TRACKERS:
        export_round(run, run.round(-1), to, trust=True)
        return to
    if to != "mlflow" or not config.promote:
        return tracked(run, to)
    with TemporaryDirectory() as place:
        folder = write_folder(run, run.round(-1), str(Path(place, "model")), trust=True)
        alias = config.promote if holder_of(config.root, config.promote) == run.name else None
        return tracked(run, to, folder=folder, alias=alias)
