"""What the command prints of simulated clusters."""

from __future__ import annotations

from dataclasses import asdict
from math import isfinite
from typing import Any

from rich.table import Table

from flows.command.printing.console import console
from flows.command.printing.plan_tables import shown_bytes, shown_range, shown_time
from flows.planning.simulating.curves import Curves, Point

COLUMNS = ("workers", "an epoch", "a round", "range", "efficiency", "held")
"""What is told of each schedule in numbers; what is held are the bytes of updates in one process."""


def simulation_summary(curves: Curves) -> dict[str, Any]:
    """What machines want to know of what was simulated; None for what never ends or has no end."""
    return {
        "costs": {kind: _finite(asdict(costs)) for kind, costs in curves.costs.items()},
        "cluster": curves.cluster.model_dump(),
        "seed": curves.seed,
        "points": [_finite(asdict(point)) for point in curves.points],
    }


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    return {
        name: None if isinstance(value, float) and not isfinite(value) else value
        for name, value in numbers.items()
    }


def print_simulation(curves: Curves) -> None:
    """The table, in which for each number of workers the schedule with the shortest epoch stands out."""
    table = Table("schedule", box=None, pad_edge=False)
    for head in COLUMNS:
        table.add_column(head, justify="right")
    table.add_column("bound by")
    best = {point.workers: curves.best(point.workers) for point in curves.points}
    for name in curves.schedules:
        for point in curves.of(name):
            table.add_row(name, *_cells(point), style="bold" if point is best[point.workers] else None)
    console().print(table)


def _cells(point: Point) -> list[str]:
    if not isfinite(point.seconds):
        return [str(point.workers), "never", "", "", "", shown_bytes(point.held), point.bound]
    return [
        str(point.workers),
        shown_time(point.epoch),
        shown_time(point.seconds),
        shown_range(point.fastest, point.slowest),
        f"{100 * point.efficiency:.3g} %",
        shown_bytes(point.held),
        f"{point.bound} ({point.share:.0%})",
    ]
