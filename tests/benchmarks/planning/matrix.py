"""What `auto` chooses beside the best of all strategies, of five models by one, two and four workers.

    python tests/benchmarks/planning/matrix.py MNIST TEXT [--seconds 4] [--turns 1] [--examples 6000]

Not a test: it asserts nothing. Strategies that are predicted to take twice as long as the chosen one are left out.
Of more than one turn it tells the medians.
"""

from __future__ import annotations

import tempfile
from pathlib import Path
from statistics import median

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import roundweave as rw
from tasks.data.sources.table import find_source
from tests.benchmarks.planning.measured import measured

FAR = 2.0
"""So many times as long as the chosen strategy are those predicted to take that are not measured."""


def main(
    mnist: str,
    text: str,
    seconds: float = 4.0,
    turns: int = 1,
    examples: int = 6000,
    workers: str = "1,2,4",
    only: str = "",
) -> None:
    """Print a row for each model and number of workers."""
    table = Table("model", "workers", "auto chose", "s an epoch", "best", "s an epoch", "chosen / best", "tried")
    with tempfile.TemporaryDirectory() as folder:
        images = _first(mnist, examples, Path(folder) / "images.npz")
        works = {
            "logistic": {"data": images, "model": "logistic"},
            "small mlp": {"data": images, "model": "mlp", "model_options": {"hidden": 32}},
            "wide mlp": {"data": images, "model": "mlp", "model_options": {"hidden": 1024}},
            "cnn": {"data": images, "model": "cnn"},
            "characters": {"data": _characters(text, Path(folder) / "text.txt"), "model": "gpt"},
        }
        for model, work in works.items():
            if only and model not in only.split(","):
                continue
            for count in map(int, workers.split(",")):
                row = _row({**work, "workers": count, "root": f"{folder}/{model}-{count}"}, seconds, turns)
                table.add_row(model, str(count), *row)
                print(model, count, *row, flush=True)
    Console().print(table)


def _row(work: dict, seconds: float, turns: int) -> list[str]:
    plan = rw.plan(rw.TrainConfig(algorithm="auto", rounds=1000, **work))
    near = [each for each in plan.predictions if not each.refused and each.epoch <= FAR * plan.chosen.epoch]
    turned = [[measured(plan, each, seconds, turn) for each in near] for turn in range(turns)]
    taken = {
        each.strategy.name: median(times) for each, times in zip(near, zip(*turned, strict=True), strict=True)
    }
    chosen, best = plan.chosen.strategy.name, min(taken, key=taken.__getitem__)
    ratio = f"{taken[chosen] / taken[best]:.2f}"
    return [chosen, f"{taken[chosen]:.3g}", best, f"{taken[best]:.3g}", ratio, str(len(taken))]


def _first(mnist: str, examples: int, file: Path) -> str:
    """The first examples of MNIST in a file of their own: an epoch of them is short."""
    train = find_source(f"mnist:{mnist}").load(0, 1).train
    inputs = train.inputs[:examples].numpy().astype(np.float32) / 255
    np.savez(file, x=inputs, y=train.targets[:examples].numpy())
    return f"npz:{file}"


def _characters(text: str, file: Path) -> str:
    file.write_text(Path(text).read_text()[:60_000])
    return f"text:{file}:32"


if __name__ == "__main__":
    typer.run(main)
