"""`roundweave export` and `roundweave report`: write stored runs for other programs and people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roundweave.flows.plugins.exports import check_export, goes_to_folder
from roundweave.flows.plugins.exports.trackers import TRACKERS, tracked
from roundweave.flows.reporting.listening import shown
from roundweave.flows.stored import open_run
from roundweave.flows.terminal.common import Force, Json, Root, RunName, Trust, output, say
from roundweave.storage.checkpoints.files import SUFFIXES
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import named_round, stored_round


def export_command(
    what: Annotated[str, typer.Argument(help="a round, RUN@12, RUN@best or RUN@last; for a tracker a run")],
    to: Annotated[
        str, typer.Option(help=f"a folder, a file ({', '.join(SUFFIXES)}) or a tracker: {', '.join(TRACKERS)}")
    ],
    out: Annotated[
        str | None, typer.Option(help="the tracker's folder, or tracking URI; default: as its environment says")
    ] = None,
    onnx: Annotated[bool, typer.Option("--onnx", help="write model.onnx into the folder, too")] = False,
    force: Force = False,
    trust: Trust = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write a round to a folder with a card or to a file, or a whole run's numbers to a tracker of experiments."""
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
    out: Annotated[Path, typer.Option(help="the page to write: .html")],
    replay: Annotated[int, typer.Option(min=0, help="so many rounds are replayed for it")] = 3,
    trust: Trust = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write one page that tells of a run and needs nothing else: how it went, and what vouches for it."""
    from roundweave.flows.plugins.exports.report import write_report

    place = write_report(open_run(run, root), out, replay, trust)
    output(as_json, {"report": str(place)}, say, f"{run} is described in {place}")
