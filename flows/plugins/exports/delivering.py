"""The end of a training: a run that is accepted is exported to all that its configuration says."""

from __future__ import annotations

from pathlib import Path
from tempfile import TemporaryDirectory

from roundweave.flows.plugins.exports import Exports
from roundweave.flows.plugins.exports.trackers import TRACKERS, tracked, unregister
from roundweave.flows.reporting.listening import notice
from roundweave.flows.stored import Run, open_run
from roundweave.storage.checkpoints.writing import CARD
from roundweave.storage.errors import PlaceError, RoundweaveError
from roundweave.storage.places.base import Where
from roundweave.storage.runs.names import Holding, holding_of
from roundweave.storage.runs.round import Round


def deliver(
    run: Run, round: Round, places: Exports, alias: str | None = None, challenges: str | None = None
) -> None:
    """Export a round of a run, which has the alias if one is given; raises `PlaceError` for what failed.

    A run that `challenges` another alias does not have it, and goes to trackers alone.
    """
    failed = []
    for to in places:
        if challenges and to not in TRACKERS:
            notice(f"{run.name} is not exported to {to}, as it is not {challenges}")
            continue
        try:
            notice(f"{run.name} is now in {_delivered(run, round, to, alias, bool(alias or challenges))}")
        except RoundweaveError as error:
            failed.append(f"{to} ({error})")
    if failed:
        again = f"`roundweave alias {alias} {run.name}`" if alias else f"`roundweave resume {run.name}`"
        raise PlaceError(f"{run.name} is complete, but not exported to {', '.join(failed)}; {again} exports again")


def deliver_champion(root: Where, alias: str, places: Exports) -> None:
    """Export the round that has an alias, and again if another process gives the alias away meanwhile."""
    holding = None
    while (now := holding_of(root, alias)) and now.run and now != holding:
        holding, run = now, open_run(alias, root)
        deliver(run, run.round("last"), places, alias)


def is_behind(to: str, holding: Holding | None) -> bool:
    """Whether a folder has the export of another round than the one that has the alias."""
    if holding is None or not holding.run or not (card := Path(to, CARD)).is_file():
        return False
    return f"| chain | {holding.chain} |" not in card.read_text("utf-8")


def _delivered(run: Run, round: Round, to: str, alias: str | None, model: bool) -> str:
    """Export a round, and return where it is; MLflow gets its `model`, too, if it is to."""
    from roundweave.flows.plugins.exports.folders import export_round, write_folder

    if to not in TRACKERS:
        export_round(run, round, to, trust=True)
        return to
    if to != "mlflow" or not model:
        return tracked(run, to)
    with TemporaryDirectory() as place:
        folder = write_folder(run, round, str(Path(place, "model")), trust=True, pyfunc=True)
        return tracked(run, to, folder=folder, alias=alias, chain=round.chain)


def take_back(run: Run, places: Exports, alias: str) -> None:
    """Take the alias from MLflow, too, and say where what the run handed out still lies."""
    for to in places:
        if to == "mlflow":
            unregister(alias)
        elif to not in TRACKERS:
            notice(f"{to} still has {run.name}, though no run is {alias} now")
