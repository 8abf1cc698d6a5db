"""`roundweave export` and `roundweave report`: write stored runs for other programs and people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roundweave.flows.plugins.exports import check_export, goes_to_folder
from roundweave.flows.plugins.exports.trackers import TRACKERS, tracked
from roundweave.flows.reporting.listening import shown
from roundweave.flows.stored import open_run
from roundweave.flows.terminal.common import Force, Json, Root, RunName, Trust, output, run_names, say
from roundweave.storage.checkpoints.files import SUFFIXES
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import named_round, stored_round


def export_command(
    what: Annotated[
        str,
        typer.Argument(help="round RUN@12, RUN@best or RUN@last; for a tracker, a run", autocompletion=run_names),
    ],
    to: Annotated[
        str, typer.Option(help=f"folder, file ({', '.join(SUFFIXES)}) or tracker: {', '.join(TRACKERS)}")
    ],
    out: Annotated[
        str | None, typer.Option(help="folder or URI of the tracker; default: from its environment variables")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="also write model.onnx to the folder")] = False,
    force: Force = False,
    trust: Trust = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Export a round's weights to a folder or file, or a run's scores to an experiment tracker."""
    check_export(to, force)
    if onnx and (to in TRACKERS or not goes_to_folder(to)):
        raise UsageError("--onnx writes a file into a folder; give one by --to FOLDER")
    if to in TRACKERS:
        if stored_round(what):
            raise UsageError(f"{to} takes a whole run, not {what}; name the run alone")
        where = tracked(open_run(what, root), to, out)
        output(as_json, {"exported": what, "to": where}, say, f"{what} is now in {where}")
        return
    from roundweave.flows.plugins.exports.folders import export_round

    name, round = named_round(what)
    if out is not None:
        raise UsageError(f"--out says where a tracker ({', '.join(TRACKERS)}) stores a run; give a file by --to")
    run = open_run(name, root)
    which = run.round(round)
    export_round(run, which, to, trust, onnx)
    facts: dict[str, Any] = {"run": run.name, "round": which.number, "chain": which.chain}
    said = f" is round {which.number}, and" if isinstance(round, str) else ""
    best = which.score.row().get(by := run.ranked_by) if round == "best" and which.score else None
    if best is not None:
        facts["best"] = {by: best}
        said = f" is round {which.number}, the best by {by} ({shown(by, best)}), and"
    output(as_json, {"exported": what, "to": to, **facts}, say, f"{what}{said} is now in {to}")


def report_command(
    run: RunName,
    out: Annotated[Path, typer.Option(help="page to write: .html")],
    replay: Annotated[int, typer.Option(min=0, help="number of rounds to replay for the report")] = 3,
    trust: Trust = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write a self-contained HTML page about a run: configuration, scores, plots and checks."""
    from roundweave.flows.plugins.exports.report import write_report

    place = write_report(open_run(run, root), out, replay, trust)
    output(as_json, {"report": str(place)}, say, f"{run} is described in {place}")
