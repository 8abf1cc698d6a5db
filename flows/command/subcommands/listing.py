"""`roundweave list`: what there is by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from flows.command.arguments import Json
from flows.command.errors import clear_errors, print_json
from flows.command.printing.console import console
from flows.config.algorithms import options_of
from tasks.algorithms.table import ABOUT
from tasks.applies.schedules import SCHEDULES
from tasks.applies.table import APPLIES
from tasks.data.sources.table import SOURCES
from tasks.data.splits.table import SPLITS
from tasks.maps.table import MAPS
from tasks.networks.losses import LOSSES
from tasks.networks.reference import MODELS
from tasks.networks.scores import SCORES
from tasks.reduces.table import REDUCES
from tasks.tables import Entry, spelled, unknown

Row = dict[str, str]


def list_command(
    table: Annotated[str | None, typer.Argument(help="one of the tables; default: all")] = None,
    as_json: Json = False,
) -> None:
    """List what there is by name: algorithms with their options, data, models and the rest."""
    with clear_errors(as_json):
        every = _tables()
        if table is not None and table not in every:
            raise unknown("table", table, every)
        chosen = {name: rows for name, rows in every.items() if table in (None, name)}
        if as_json:
            print_json(chosen)
        else:
            _print(chosen)


def _tables() -> dict[str, list[Row]]:
    """Every table by name, a row a name: what it is, and of an algorithm its options."""
    entries = {"sources": SOURCES, "splits": SPLITS, "maps": MAPS, "reduces": REDUCES, "applies": APPLIES}
    functions: dict[str, Mapping[str, Callable[..., Any]]] = {"models": MODELS, "losses": LOSSES, "scores": SCORES}
    return {
        "algorithms": [{"name": n, "what it is": about, "options": _options(n)} for n, about in ABOUT.items()],
        **{name: _entries(table) for name, table in (entries | {"schedules": SCHEDULES}).items()},
        **{name: _documented(table) for name, table in functions.items()},
    }


def _entries(table: Mapping[str, Entry]) -> list[Row]:
    written = zip(spelled(table), table.values(), strict=True)
    return [{"name": name, "what it is": entry.about} for name, entry in written]


def _documented(table: Mapping[str, Callable[..., Any]]) -> list[Row]:
    return [{"name": name, "what it is": _first_line(value)} for name, value in table.items()]


def _first_line(value: Callable[..., Any]) -> str:
    return (inspect.getdoc(value) or "").partition("\n")[0].rstrip(".")


def _options(algorithm: str) -> str:
    """The options with their defaults; of a relative of fed_avg how they differ from its own."""
    options = {name: field.default for name, field in options_of(algorithm).items()}
    common = {name: field.default for name, field in options_of("fed_avg").items()}
    if algorithm == "fed_avg" or "local_steps" not in options:
        return _listed(options)
    own = {name: value for name, value in options.items() if name not in common or common[name] != value}
    lacking = ", ".join(name for name in common if name not in options)
    return "as fed_avg" + (f", {_listed(own)}" if own else "") + (f"; without {lacking}" if lacking else "")


def _listed(options: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value}" for name, value in options.items())


def _print(tables: Mapping[str, list[Row]]) -> None:
    out = console(wide=False)
    for title, rows in tables.items():
        table = Table(title=title, title_justify="left", box=None, pad_edge=False, title_style="bold")
        for column in rows[0]:
            table.add_column(column, no_wrap=column == "name")
        for row in rows:
            table.add_row(*row.values())
        out.print(table)
        out.print()
