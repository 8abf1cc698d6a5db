"""Arguments that several subcommands take, and functions that print their output."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.cells import cell_len
from rich.console import Console, ConsoleOptions, JustifyMethod
from rich.table import Table
from rich.text import Text

from roundweave.flows.reporting.listening import shown_cell
from roundweave.storage.errors import printable

Force = Annotated[bool, typer.Option("--force", help="replace an existing file")]
Json = Annotated[bool, typer.Option("--json", help="print the result as a JSON object on the last line")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="print only errors and JSON")]
Root = Annotated[str | None, typer.Option("--root", help="folder of the runs; default: $ROUNDWEAVE_ROOT or runs")]


def run_names(incomplete: str) -> list[str]:
    """Return the runs and aliases under the default root that begin so, for a shell that completes a name."""
    from roundweave.storage.runs.names import (
        aliases,
        default_root,
        run_name,
        stored_names,
    )  # few commands complete

    root = default_root()
    return [name for name in (*map(run_name, stored_names(root)), *aliases(root)) if name.startswith(incomplete)]


RunName = Annotated[str, typer.Argument(help="name or address of a run", autocompletion=run_names)]
TomlFile = Annotated[
    Path | None,
    typer.Argument(help="TOML file with any of the options below; its paths are relative to its folder"),
]
Trust = Annotated[bool, typer.Option(help="execute code that is stored with a run outside the root")]

WIDE = 10_000
"""The line width where the output is no terminal, so large that nothing is cut."""

LIST = "LIST"
"""How the help shows the value of an option that takes several values, at commas."""


class _Printed(Console):
    """A console that prints texts, also in tables, literally: no markup, no emoji, no control characters."""

    def render_str(self, text: str, **options: Any) -> Text:
        return super().render_str(printable(text), **options | {"markup": False})


def console(stderr: bool = False, wide: bool = True) -> Console:
    """Return a console on standard output or standard error that is safe for texts from stores and users' code.

    Where the output is no terminal, lines are not wrapped, unless `wide` is false, as for prose.
    """
    terminal = (sys.stderr if stderr else sys.stdout).isatty()
    width = WIDE if wide and not terminal else None
    return _Printed(stderr=stderr, highlight=False, markup=False, emoji=False, width=width)


def say(*lines: str, style: str | None = None) -> None:
    """Print lines on standard output, none of them wrapped."""
    for line in lines:
        console().print(line, style=style, soft_wrap=True)


def print_json(value: Any) -> None:
    """Print one line of JSON on standard output."""
    typer.echo(json.dumps(value).replace("\x7f", "\\u007f"))  # the one control character that JSON may have


def output(as_json: bool, summary: Any, show: Callable[..., None], *shown: Any) -> None:
    """Print a summary as JSON, or call `show(*shown)` to print for a person."""
    if as_json:
        print_json(summary)
    else:
        show(*shown)


@dataclass(frozen=True)
class TextTable:
    """Rows that all have the same keys, printed as a table with a column for each key.

    If they are too wide, several tables are printed below each other, each with the first column; none is cut.
    Numbers are formatted by their column's name. With `right`, all columns but the first are aligned right. Those
    that are `spare` are left out where they would not fit, the first of these first.
    """

    rows: Sequence[Mapping[Any, Any]]
    right: bool = False
    spare: tuple[str, ...] = ()

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> Iterator[Table | Text]:
        wide, width = options.update(width=WIDE), options.max_width
        first, *rest = self.rows[0] if self.rows else [""]
        for name in (None, *self.spare):
            rest = [other for other in rest if other != name]
            if rest and cell_len((lines := self._lines([first, *rest]))[0]) <= width:
                yield Text.assemble(
                    (lines[0], "bold"), "\n".join(["", *lines[1:]]), no_wrap=True, overflow="ignore"
                )
                return
        while rest:
            tables = [self._table([first, *rest[:count]], width) for count in range(len(rest), 0, -1)]
            fitting = (table for table in tables if console.measure(table, options=wide).minimum <= width)
            yield (table := next(fitting, tables[-1]))
            rest = rest[len(table.columns) - 1 :]

    def _lines(self, names: Sequence[Any]) -> list[str]:
        """Return the head and the rows as lines of the same width; rich takes several times as long for it."""
        columns = []
        for number, name in enumerate(names):
            cells = [printable(text) for text in (name, *(shown_cell(str(name), row[name]) for row in self.rows))]
            width = max(map(cell_len, cells))
            spaces = [" " * (width - cell_len(cell)) for cell in cells]
            right = self.right and number > 0
            columns.append([s + cell if right else cell + s for cell, s in zip(cells, spaces, strict=True)])
        return ["  ".join(row) for row in zip(*columns, strict=True)]

    def _table(self, names: Sequence[Any], width: int) -> Table:
        """Return the table of some columns.

        Texts are wrapped at spaces, long names and the first column anywhere.
        """
        made = Table(box=None, pad_edge=False)
        rows = [[str(shown_cell(str(name), row[name])) for name in names] for row in self.rows]
        for name, *cells in zip(map(str, names), *rows, strict=True):
            justify: JustifyMethod = "right" if self.right and made.columns else "left"
            whole = len(name) <= width // 2 and not any(" " in cell for cell in cells)
            made.add_column(name, justify=justify, overflow="fold", no_wrap=whole)
        made.columns[0].no_wrap, made.columns[0].max_width = False, width // 2
        for cells in rows:
            made.add_row(*cells)
        return made
