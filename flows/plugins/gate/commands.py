"""`roundweave alias`: who has an alias such as champion, and who had it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from datetime import datetime
from typing import Annotated, Any

import typer

from roundweave.flows.terminal.common import Json, Root, TextTable, console, output, say
from roundweave.storage.errors import UsageError
from roundweave.storage.runs.names import alias_history, aliases, default_root, holder_of


def alias_command(
    alias: Annotated[str | None, typer.Argument(help="such as champion; all of them where none is given")] = None,
    run: Annotated[str | None, typer.Argument(help="a run that is to have it, also RUN@12")] = None,
    take_back: Annotated[bool, typer.Option("--take-back", help="nobody is to have it")] = False,
    pin: Annotated[bool, typer.Option("--pin", help="no run takes it by itself until --unpin")] = False,
    unpin: Annotated[bool, typer.Option("--unpin", help="runs that are not worse take it again")] = False,
    anyway: Annotated[bool, typer.Option("--anyway", help="also to a run that its gate rejected")] = False,
    why: Annotated[str, typer.Option(help="a reason to be kept with it")] = "by hand",
    root: Root = None,
    as_json: Json = False,
) -> None:
    """Show who has an alias and who had it, give it to a run, pin it, or take it back.

    An alias is a run at a round, and goes wherever a run does. What the run exports goes with the alias.
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
