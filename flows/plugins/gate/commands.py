"""`roundweave alias`: who has an alias such as champion, and who had it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from roundweave.flows.terminal.common import Json, Root, TextTable, console, output, say
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import alias_history, aliases, default_root, give_alias
from roundweave.storage.runs.run import open_stored


def alias_command(
    alias: Annotated[str | None, typer.Argument(help="such as champion; all of them where none is given")] = None,
    run: Annotated[str | None, typer.Argument(help="a run that is to have it")] = None,
    take_back: Annotated[bool, typer.Option("--take-back", help="nobody is to have it")] = False,
    why: Annotated[str, typer.Option(help="a reason to be kept with it")] = "by hand",
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show who has an alias and who had it, give it to a run, or take it back. It goes wherever a run does."""
    root = root or default_root()
    if take_back and (run or not alias):
        raise UsageError("--take-back takes an alias from whoever has it: give the alias, and no run")
    if alias and run:
        from roundweave.flows.plugins.gate.judging import give

        give(root, alias, open_stored(run, root), why)
    elif alias and alias not in aliases(root):
        raise UsageError(f"no alias {alias!r} under {root}; `roundweave alias {alias} RUN` gives it to a run")
    elif alias and take_back:
        give_alias(root, alias, None, why)
    histories = {name: alias_history(root, name) for name in ([alias] if alias else aliases(root))}
    shown = {name: entries if alias else entries[-1:] for name, entries in histories.items()}
    rows = [{"alias": name, **asdict(entry)} for name, entries in shown.items() for entry in entries]
    output(as_json, rows, _print_aliases, rows)


def _print_aliases(rows: Sequence[Mapping[str, Any]]) -> None:
    if not rows:
        say("no aliases; `roundweave alias champion RUN` gives one")
        return
    table = [
        {
            "alias": row["alias"],
            "run": row["run"] or "nobody",
            "rounds": row["round"],
            "since": f"{datetime.fromtimestamp(row['since']).astimezone():%Y-%m-%d %H:%M}",
            "why": row["why"],
        }
        for row in rows
    ]
    console().print(TextTable(table))
