"""`roundweave show`, `roundweave runs` and `roundweave list`: what looks and changes nothing."""

from __future__ import annotations

from typing import Annotated

import typer

from flows.command.arguments import Json, Root, RunName
from flows.command.errors import clear_errors, print_json
from flows.command.printing import summaries, tables
from storage.errors import UsageError
from storage.runs.listing import looked_through
from storage.runs.run import open_run


def show_command(
    run: RunName,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Print what a run is and how it went."""
    with clear_errors(as_json):
        stored = open_run(run, root)
        if as_json:
            print_json(summaries.detailed_summary(stored))
        else:
            tables.print_run(stored)


def runs_command(
    folder: Annotated[str | None, typer.Argument(help="the same as --root", metavar="ROOT")] = None,
    root: Root = None,
    as_json: Json = False,
) -> None:
    """List the runs under a root."""
    with clear_errors(as_json):
        if folder and root:
            raise UsageError(f"one root at a time: {folder}, or --root {root}")
        stored = looked_through(folder or root)
        if as_json:
            print_json([summaries.summary_or_damage(name, run) for name, run in stored.items()])
        else:
            tables.print_runs(stored)
