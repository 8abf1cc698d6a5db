"""Rounds on 1, 2, 4 and 8 workers of this machine, simulated with costs of at most four, and then measured.

    python tests/benchmarks/planning/eight.py [--data mnist:DIR] [--seconds 4]

Not a test: it asserts nothing. What is simulated is printed before anything is measured.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from math import ceil

import typer
from rich.console import Console
from rich.table import Table

import roundweave as rw
from flows.planning.outcome import seconds_of_rounds
from flows.planning.simulating.beyond import beyond
from flows.planning.simulating.cluster import SimulatedCluster
from flows.planning.simulating.curves import Point

WORKERS = (1, 2, 4, 8)
MEASURED_WITH = 4
KINDS = {"synchronous": {"algorithm": "sync_sgd"}} | {
    f"local {steps}": {"algorithm": "fed_avg", "local_steps": steps} for steps in (10, 100)
}


def main(data: str = "digits", seconds: float = 4.0) -> None:
    """Print a row for each schedule and number of workers."""
    console = Console()
    here = SimulatedCluster(machines=1, cores=os.cpu_count() or 1, bandwidth=1e15, latency=0)
    with tempfile.TemporaryDirectory() as root:
        config = rw.TrainConfig(data=data, algorithm="auto", workers=MEASURED_WITH, root=root)
        curves = beyond(config, here, WORKERS)
        points = [point for point in curves.points if point.schedule.rpartition(", ")[0] in KINDS]
        for point in points:
            console.print(
                f"simulated: {point.schedule}, {point.workers} workers: {1e3 * point.seconds:.1f} ms a round"
            )
        taken = [_measured(data, root, point, seconds) for point in points]
    table = Table("schedule", "workers", "simulated, ms", "measured, ms", "simulated / measured")
    for point, took in zip(points, taken, strict=True):
        numbers = f"{1e3 * point.seconds:.1f}", f"{1e3 * took:.1f}", f"{point.seconds / took:.2f}"
        table.add_row(point.schedule, str(point.workers), *numbers)
    console.print(table)
    for count in WORKERS:
        ratios = [
            point.seconds / took for point, took in zip(points, taken, strict=True) if point.workers == count
        ]
        told = f"{statistics.median(ratios):.2f} ({min(ratios):.2f} to {max(ratios):.2f})"
        console.print(f"{count} workers: simulated / measured {told}")


def _measured(data: str, root: str, point: Point, seconds: float) -> float:
    """Seconds of a round that is done, of as many as fit into so many seconds."""
    kind, _, executor = point.schedule.rpartition(", ")
    rounds = max(4, ceil(seconds / point.seconds))
    run = rw.train(
        rw.TrainConfig(
            **KINDS[kind],
            batch_size=32,
            data=data,
            root=root,
            name=f"{kind}-{executor}-{point.workers}".replace(" ", "-"),
            executor=executor,
            workers=point.workers,
            partitions=point.workers,
            rounds=rounds,
            evaluate_every=rounds,
        )
    )
    taken = seconds_of_rounds(run)
    assert taken is not None
    return taken


if __name__ == "__main__":
    typer.run(main)
