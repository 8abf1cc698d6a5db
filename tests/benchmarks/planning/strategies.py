"""Predicted and measured seconds an epoch of all strategies that a plan has.

    python tests/benchmarks/planning/strategies.py [--data mnist:DIR] [--workers 2] [--seconds 6] [--turns 3]

Not a test: it asserts nothing. An epoch of local steps is not one of synchronous steps: what is compared is time.
A machine changes its pace within minutes, so each turn plans and measures, and medians over turns are told.
"""

from __future__ import annotations

import statistics
import tempfile
from itertools import pairwise

import typer
from rich.console import Console
from rich.table import Table

import roundweave as rw
from tests.benchmarks.planning.measured import measured, ratios

Pair = tuple[float, float]
"""Seconds an epoch, predicted and measured."""


def main(data: str = "digits", model: str = "mlp", workers: int = 2, seconds: float = 6.0, turns: int = 3) -> None:
    """Print the table, and what of the order was predicted."""
    console = Console()
    told = [_turn(data, model, workers, seconds) for _ in range(turns)]
    rows = {name: [turn[name] for turn in told] for name in told[0]}
    pairs = {
        name: (statistics.median(one for one, _ in row), statistics.median(other for _, other in row))
        for name, row in rows.items()
    }
    shares = {name: statistics.median(one / other for one, other in row) for name, row in rows.items()}
    table = Table("strategy", "predicted", "measured", "predicted / measured", title="s an epoch")
    for name in sorted(rows, key=lambda name: pairs[name][0]):
        of_turns = ", ".join(f"{one / other:.2f}" for one, other in rows[name])
        table.add_row(name, *(f"{value:.3g}" for value in pairs[name]), f"{shares[name]:.2f} ({of_turns})")
    console.print(table)
    for turn in told:
        console.print(f"a turn, predicted / measured: {ratios(list(turn.values()))}")
    off = [abs(share - 1) for share in shares.values()]
    console.print(f"off by {statistics.median(off):.0%}, at most by {max(off):.0%}")
    for one, other in pairwise(sorted(rows, key=lambda name: pairs[name][0])):
        if pairs[other][1] < pairs[one][1]:
            share = pairs[other][1] / pairs[one][1]
            console.print(f"{other} is predicted after {one}, and takes {share:.2f} of its time")


def _turn(data: str, model: str, workers: int, seconds: float) -> dict[str, Pair]:
    """A plan, and what became of each of its strategies."""
    with tempfile.TemporaryDirectory() as root:
        config = rw.TrainConfig(data=data, model=model, algorithm="auto", workers=workers, rounds=100, root=root)
        plan = rw.plan(config)
        possible = [each for each in plan.predictions if not each.refused]
        return {each.strategy.name: (each.epoch, measured(plan, each, seconds)) for each in possible}


if __name__ == "__main__":
    typer.run(main)
