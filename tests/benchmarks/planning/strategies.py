"""Predicted and measured seconds an epoch of all strategies that a plan has.

    python tests/benchmarks/planning/strategies.py [--data mnist:DIR] [--workers 2] [--seconds 6]

Not a test: it asserts nothing. An epoch of local steps is not one of synchronous steps: what is compared is time.
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


def main(data: str = "digits", model: str = "mlp", workers: int = 2, seconds: float = 6.0) -> None:
    """Print the table, and what of the order was predicted."""
    console = Console()
    with tempfile.TemporaryDirectory() as root:
        config = rw.TrainConfig(data=data, model=model, algorithm="auto", workers=workers, rounds=100, root=root)
        plan = rw.plan(config)
        possible = sorted((each for each in plan.predictions if not each.refused), key=lambda each: each.epoch)
        taken = {each.strategy.name: measured(plan, each, seconds) for each in possible}
    table = Table("strategy", "predicted", "measured", "predicted / measured", "bound by", title="s an epoch")
    for each in possible:
        name = each.strategy.name
        ratio = f"{each.epoch / taken[name]:.2f}"
        table.add_row(name, f"{each.epoch:.3g}", f"{taken[name]:.3g}", ratio, each.bound)
    console.print(table)
    pairs = [(each.epoch, taken[each.strategy.name]) for each in possible]
    off = [abs(predicted / took - 1) for predicted, took in pairs]
    console.print(f"predicted / measured: {ratios(pairs)}")
    console.print(f"off by {statistics.median(off):.0%}, at most by {max(off):.0%}")
    for one, other in pairwise(taken):
        if taken[other] < taken[one]:
            console.print(
                f"{other} is predicted after {one}, and takes {taken[other] / taken[one]:.2f} of its time"
            )
    console.print(f"chosen: {plan.reason}")


if __name__ == "__main__":
    typer.run(main)
