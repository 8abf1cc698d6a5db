"""`roundweave export` and `roundweave report`: write stored runs for other programs and people."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from roundweave.flows.command.common import Force, Json, Root, RunName, Trust, output, say
from roundweave.flows.config.exports import check_export, is_folder
from roundweave.flows.exporting.trackers import TRACKERS, tracked
from roundweave.flows.reporting.listening import shown
from roundweave.flows.stored import Run, open_run
from roundweave.storage.checkpoints.files import SUFFIXES
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import WhichRound, stored_round


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
    if onnx and (to in TRACKERS or not is_folder(to)):
        raise UsageError("--onnx writes a file into a folder; give one by --to FOLDER")
    if to in TRACKERS:
        where = _tracked(what, to, out, root)
        output(as_json, {"exported": what, "to": where}, say, f"{what} is now in {where}")
        return
    from roundweave.flows.exporting.folders import export_round

    run, round = _named(what, out, root)
    which = run.round(round)
    export_round(run, which, to, trust, onnx)
    facts: dict[str, Any] = {"run": run.name, "round": which.number, "chain": which.chain}
    said = f" is round {which.number}, and" if isinstance(round, str) else ""
    best = which.score.row().get(by := run.ranked_by) if round == "best" and which.score else None
    if best is not None:
        facts["best"] = {by: best}
        said = f" is round {which.number}, the best by {by} ({shown(by, best)}), and"
    output(as_json, {"exported": what, "to": to, **facts}, say, f"{what}{said} is now in {to}")


def _tracked(run: str, tracker: str, out: str | None, root: str | None) -> str:
    """Export a run to a tracker and return where it is; raises `UsageError` if a single round was named."""
    if stored_round(run):
        raise UsageError(f"{tracker} takes a whole run, not {run}; name the run alone")
    return tracked(open_run(run, root), tracker, out)


def _named(round: str, out: str | None, root: str | None) -> tuple[Run, WhichRound]:
    """The run and the round of a text such as ``RUN@12``; raises `UsageError` for a run or a given `out`."""
    named = stored_round(round)
    if named is None:
        raise UsageError(f"{round} is no round; name one, as {round.partition('@')[0]}@last")
    if out is not None:
        raise UsageError(f"--out says where a tracker ({', '.join(TRACKERS)}) stores a run; give a file by --to")
    return open_run(named[0], root), named[1]


def report_command(
    run: RunName,
    out: Annotated[Path, typer.Option(help="the page to write: .html")],
    replay: Annotated[int, typer.Option(min=0, help="so many rounds are replayed for it")] = 3,
    trust: Trust = False,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Write one page that tells of a run and needs nothing else: how it went, and what vouches for it."""
    from roundweave.flows.exporting.report import write_report

    place = write_report(open_run(run, root), out, replay, trust)
    output(as_json, {"report": str(place)}, say, f"{run} is described in {place}")
