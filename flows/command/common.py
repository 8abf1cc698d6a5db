"""What subcommands share: arguments that several of them take, and how they print."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from flows.reporting.scores import shown_cell
from storage.errors import printable

Json = Annotated[bool, typer.Option("--json", help="print one JSON object as the last line")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print nothing but errors and JSON")]
Root = Annotated[str | None, typer.Option("--root", help="folder of all runs; default: $ROUNDWEAVE_ROOT or runs")]
RunName = Annotated[str, typer.Argument(help="the run's name, or its address")]
Trust = Annotated[bool, typer.Option(help="run the code kept in a store outside the root")]

WIDE = 10_000
"""Columns where the output is no terminal, so that nothing is cut."""


class _Printed(Console):
    """Texts, also those in tables, are shown as they are: neither markup nor emoji, and nothing moves a cursor."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options | {"markup": False})


def console(stderr: bool = False, wide: bool = True) -> Console:
    """Standard output or standard error, for texts that come from a store, a user's code, or a user.

    Lines are never wrapped for another program, unless it is prose that need not be `wide`.
    """
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = WIDE if wide and not terminal else None
    return _Printed(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def say(text: str, style: str | None = None) -> None:
    """Print one line on standard output, however long it is."""
    console().print(text, style=style, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one line of JSON on standard output."""
    typer.echo(json.dumps(value).replace("\x7f", "\\u007f"))  # the one control character that JSON may have


def output(as_json: bool, summary: Any, show: Callable[..., None], *shown: Any) -> None:
    """Print a summary as JSON, or have `show` print what is `shown` for a person."""
    if as_json:
        print_json(summary)
    else:
        show(*shown)


def table(
    rows: Iterable[Mapping[Any, Any]],
    right: bool = False,
    bold: Callable[[Mapping[Any, Any]], bool] = lambda row: False,
    title: str | None = None,
) -> Table:
    """Rows with the same names as a table: a column for each name, its first column never cut.

    Numbers are written as their column's name asks for; all columns but the first are flushed `right` if asked.
    """
    rows = list(rows)
    made = Table(title=title, title_justify="left", title_style="bold", box=None, pad_edge=False)
    for name in rows[0] if rows else ():
        if made.columns:
            made.add_column(str(name), justify="right" if right else "left")
        else:
            longest = max(len(str(row[name])) for row in rows)
            made.add_column(str(name), no_wrap=True, min_width=longest)
    for row in rows:
        cells = (str(shown_cell(str(name), value)) for name, value in row.items())
        made.add_row(*cells, style="bold" if bold(row) else None)
    return made
