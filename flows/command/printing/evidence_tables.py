"""What the command prints of rounds that were reduced again, and of where two runs differ."""

from __future__ import annotations

from rich.table import Table

from flows.command.printing.console import console
from flows.evidence.differing import RunDifference
from flows.reporting.scores import shown
from tasks.evidence.recombining import Recombination


def print_recombination(result: Recombination) -> None:
    """A row a round: each score, and what it was before."""
    out = console()
    rows = [round.row() for round in result.rounds]
    names = list(dict.fromkeys(name for row in rows for name in row if f"{name}_before" in row))
    columns = [column for name in names for column in (name, "before")]
    table = Table("round", *columns, "state", box=None, pad_edge=False)
    for row in rows:
        scores = [shown(name, row.get(key)) for name in names for key in (name, f"{name}_before")]
        table.add_row(str(row["round"]), *scores, "the same bits" if row["identical"] else "another")
    out.print(table)
    if result.saved:
        out.print(f"kept in {result.saved}; `roundweave resume` goes on from there", soft_wrap=True)


def print_difference(difference: RunDifference) -> None:
    """A line for each field, and one for the round."""
    out = console()
    first, second = difference.runs
    if difference.equal:
        out.print(
            f"{first} and {second} are equal: experiment, updates and states of {difference.compared} rounds"
        )
        return
    for field in difference.config:
        out.print(f"config: {field}", soft_wrap=True)
    if difference.round is None:
        out.print(f"all {difference.compared} rounds are equal")
        return
    out.print(str(difference), soft_wrap=True)
