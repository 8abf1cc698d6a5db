"""What looking at a long run costs: milliseconds to open it, to show it, and to have its tables.

    python -m tests.benchmarks.speed.notebook [--rounds 1000] [--partitions 4]

Not a test: it asserts nothing. Each number is the median of five, in a process that has done it once; the last
column is the share of 100 ms, in which a run of 1,000 rounds must be shown.
"""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable
from pathlib import Path

import typer

from roundweave.flows.stored import Run
from tests.benchmarks.rounds import seconds, show
from tests.benchmarks.speed.written import written

SHAPES = {f"layer{number}.weight": (8,) for number in range(20)}
LIMIT = 100.0


def main(rounds: int = 1000, partitions: int = 4) -> None:
    """Print the table."""
    lines = []
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder) / "long.zarr", SHAPES, partitions, rounds)
        run = Run(path)
        looks: dict[str, Callable[[], object]] = {
            "repr(run)": lambda: repr(run),
            "str(run)": lambda: str(run),
            "repr(run.round(-1))": lambda: repr(run.round(-1)),
            "str(run.round(-1))": lambda: str(run.round(-1)),
            "open and repr": lambda: repr(Run(path)),
            "open and str": lambda: str(Run(path)),
            "open and history": lambda: Run(path).history(),
            "run.ds": lambda: run.ds,
            "run.tree": lambda: run.tree,
        }
        for name, look in looks.items():
            spent = 1e3 * statistics.median([seconds(look) for _ in range(6)][1:])
            lines.append((name, f"{spent:.2f}", f"{spent / LIMIT:.2f}"))
    show(("what", "ms", "of 100 ms"), lines, f"{rounds} rounds of {partitions} partitions")


if __name__ == "__main__":
    typer.run(main)
