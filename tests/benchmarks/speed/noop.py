"""What a round costs that computes nothing: milliseconds a round with everything stored.

    python -m tests.benchmarks.speed.noop [--elements 100] [--rounds 60] [--window 8]

Not a test: it asserts nothing. It prints medians over the rounds after the first window.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from dataclasses import dataclass

import typer
from rich.console import Console
from rich.table import Table

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import Prepared, prepared
from roundweave.storage.values.state import Update
from roundweave.tasks.algorithms.algebra import Algorithm, Map
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from tests.benchmarks.speed.constant import CONSTANT


@dataclass(frozen=True)
class Nothing(Map):
    """Sends back a little of the parameters."""

    def __call__(self, objective, state, examples, carry, seed) -> Update:
        return Update({name: vector * 1e-3 for name, vector in state.params.items()})


def algorithm() -> Algorithm:
    return Algorithm(Nothing(), Mean(), Sgd(1.0))


def milliseconds(executor: Executor, ready: Prepared, rounds: int, window: int) -> float:
    """The median over windows of a window's time divided by its rounds; the first does not count."""
    spent: list[float] = []
    for first in range(1, rounds + 1, window):
        began, last = time.perf_counter(), min(first + window - 1, rounds)
        for _ in executor.run(ready.job, first, last):
            pass
        spent.append((time.perf_counter() - began) * 1e3 / (last - first + 1))
    return statistics.median(spent[1:])


def main(elements: int = 100, rounds: int = 60, window: int = 10) -> None:
    """Print the table."""
    own = CONSTANT | {"algorithm": f"{__file__}:algorithm"}
    table = Table("partitions", "inline", "graph, window 1", f"graph, window {window}", title="ms a round")
    with tempfile.TemporaryDirectory() as root, connect(None, 2) as client:
        for partitions in (2, 10, 100):
            fields = {"partitions": partitions, "rounds": rounds, "root": root, "held_out": 0}
            config = TrainConfig(**own, **fields, model_options={"elements": elements})
            row = [str(partitions)]
            for executor, size in (
                (InlineExecutor(), 1),
                (GraphExecutor(client), 1),
                (GraphExecutor(client), window),
            ):
                with prepared(resolve(config), executor) as ready:
                    row.append(f"{milliseconds(executor, ready, rounds, size):.1f}")
            table.add_row(*row)
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
