"""`roundweave alias`: who has an alias such as champion, and who had it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from roundweave.flows.terminal.common import Json, Root, TextTable, console, output, run_names, say
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import alias_history, aliases, default_root, holder_of


def alias_command(
    alias: Annotated[str | None, typer.Argument(help="alias, such as champion; default: all aliases")] = None,
    run: Annotated[
        str | None, typer.Argument(help="run or round RUN@12 that gets the alias", autocompletion=run_names)
    ] = None,
    take_back: Annotated[bool, typer.Option("--take-back", help="remove the alias from its run")] = False,
    pin: Annotated[bool, typer.Option("--pin", help="block automatic changes until --unpin")] = False,
    unpin: Annotated[bool, typer.Option("--unpin", help="allow automatic changes again")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="accept a run that its gate rejected")] = False,
    why: Annotated[str, typer.Option(help="reason to record")] = "by hand",
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show the present and earlier runs of an alias, give it to a run, pin it, or take it back.

    An alias names a round of a run. Commands take an alias in place of a run's name. Exports follow the alias.
    """
    root = root or default_root()
    given = [f"--{name}" for name, on in (("take-back", take_back), ("pin", pin), ("unpin", unpin)) if on]
    if given and (not alias or len(given) > 1 or (run and not pin)):
        raise UsageError(f"{', '.join(given)}: give one of these with an alias, and a run with --pin alone")
    if alias and not run and alias not in aliases(root):
        raise UsageError(f"no alias {alias!r} under {root}; `roundweave alias {alias} RUN` gives it to a run")
    if alias and (run or given):
        from roundweave.flows.plugins.gate.giving import give_by_hand

        named = None if take_back else run or (holder_of(root, alias) and alias)
        give_by_hand(root, alias, named, why, pinned=pin or take_back, anyway=anyway)
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
            "run": f"{row['run']}@{row['round']}" if row["run"] else "nobody",
            "pinned": "yes" if row["pinned"] else "",
            "since": f"{datetime.fromtimestamp(row['since']).astimezone():%Y-%m-%d %H:%M}",
            "by": row["by"],
            "why": row["why"],
        }
        for row in rows
    ]
    console().print(TextTable(table))
