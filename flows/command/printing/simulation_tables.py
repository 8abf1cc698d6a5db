"""What the command prints of simulated clusters."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any

from rich.table import Table

from flows.command.printing.console import console
from flows.command.printing.plan_tables import shown_time
from flows.planning.simulating.curves import Curves, Point

COLUMNS = ("workers", "an epoch", "a round", "9 of 10 within", "efficiency")
"""What is told of each schedule in numbers."""


def simulation_summary(curves: Curves) -> dict[str, Any]:
    """What machines want to know of what was simulated."""
    return {
        "costs": {kind: asdict(costs) for kind, costs in curves.costs.items()},
        "cluster": curves.cluster.model_dump(),
        "seed": curves.seed,
        "points": [asdict(point) for point in curves.points],
    }


def print_simulation(curves: Curves) -> None:
    """The table, in which for each number of workers the schedule with the shortest epoch stands out."""
    table = Table("schedule", box=None, pad_edge=False)
    for head in COLUMNS:
        table.add_column(head, justify="right")
    table.add_column("bound by")
    for point in curves.points:
        best = point is curves.best(point.workers)
        table.add_row(point.schedule, *_cells(point), style="bold" if best else None)
    console().print(table)


def _cells(point: Point) -> list[str]:
    times = map(shown_time, (point.epoch, point.seconds, point.slowest))
    return [
        str(point.workers),
        *times,
        f"{100 * point.efficiency:.3g} %",
        f"{point.bound} ({point.share:.0%})",
    ]
