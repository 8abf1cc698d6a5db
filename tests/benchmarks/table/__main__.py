"""Roundweave beside peers: each row's contenders by turns, a process each, medians and ratios.

    python -m tests.benchmarks.table [mnist:DIR] [--row step --row fedavg] [--repeats 5] [--seconds 900]
        [--json FILE] [--picture FILE] [--environments FOLDER]

Peers that need packages of their own have an environment each, made by pip when it is first used. The examples are
MNIST's, as a default those in $ROUNDWEAVE_DATA; all contenders read one file. Not a test: it asserts nothing.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from roundweave.storage.errors import DataError
from tests.benchmarks.rounds import default_data
from tests.benchmarks.table import picture as pictures
from tests.benchmarks.table.errors import NoReading
from tests.benchmarks.table.measuring import Line, Measured, Read, lines, measure
from tests.benchmarks.table.processes import Readings, read
from tests.benchmarks.table.rows.base import Contender, Row
from tests.benchmarks.table.rows.table import ROWS
from tests.benchmarks.table.showing import number, table, write_json

WIDTH = 160


def examples_of(row: Row, data: str | None, folder: Path) -> Path:
    """The file of a row's examples, which rows share. Raises `NoReading` where they are not there."""
    file = folder / f"{row.examples.__name__}.npz"
    if not file.exists():
        try:
            row.examples(data, file)
        except DataError as error:
            raise NoReading(str(error)) from None
    return file


def told(console: Console, row: Row, data: str | None, folder: Path, environments: Path) -> Read:
    """What reads a contender and tells of it."""

    def reading(contender: Contender) -> Readings:
        try:
            found = read(contender, examples_of(row, data, folder), environments)
        except NoReading as error:
            console.print(f"{row.name}: {contender.name}: {error}", markup=False, emoji=False)
            raise
        numbers = ", ".join(f"{name} {number(value)}" for name, value in found.items())
        console.print(f"{row.name}: {contender.name}: {numbers}", markup=False, emoji=False)
        return found

    return reading


def main(
    data: Annotated[str | None, typer.Argument(help="mnist:DIR; default: that of $ROUNDWEAVE_DATA")] = None,
    row: Annotated[list[str] | None, typer.Option(help=f"one of {', '.join(ROWS)}; default: all")] = None,
    repeats: Annotated[int, typer.Option(min=1, help="turns of each row")] = 5,
    seconds: Annotated[float, typer.Option(help="after so many a row begins no further turn")] = 900.0,
    json: Annotated[Path | None, typer.Option(help="file for all readings")] = None,
    picture: Annotated[Path | None, typer.Option(help="file for the ratios as bars")] = None,
    environments: Annotated[Path, typer.Option(help="folder of the peers' environments")] = Path(
        "~/.cache/roundweave-bench"
    ),
) -> None:
    """Print the table."""
    if unknown := sorted({*(row or [])} - {*ROWS}):
        raise typer.BadParameter(f"no row {', '.join(unknown)}; there are {', '.join(ROWS)}")
    console = Console(width=WIDTH)
    measured: list[Measured] = []
    with tempfile.TemporaryDirectory() as folder:
        for chosen in (ROWS[name] for name in row or ROWS):
            reading = told(console, chosen, data or default_data(), Path(folder), environments.expanduser())
            measured.append(measure(chosen, reading, repeats, seconds))
    shown: list[Line] = [line for each in measured for line in lines(each)]
    console.print(table(shown))
    if json:
        write_json(measured, shown, json)
    if picture:
        pictures.draw(shown, picture)


if __name__ == "__main__":
    typer.run(main)
