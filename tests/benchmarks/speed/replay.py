"""What replaying all rounds of a run costs, beside training them.

    python -m tests.benchmarks.speed.replay [mnist:DIR] [--rounds 6] [--repeats 3]

Federated averaging of an mlp over ten partitions, a local epoch a round in batches of 32; trained and replayed in
turn, in this process and on two workers. Both begin with a configuration, and load the examples anew. Not a test:
it asserts nothing but that the bits are the same. It prints medians over the repeats, and the spread of the ratio.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.evidence.replaying import ReplayConfig, replay
from roundweave.flows.preparing.job import prepared
from roundweave.tasks.data.partitions import forget_examples
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import window_size

RECIPE = {"model": "mlp", "model_options": {"hidden": 256}, "partitions": 10, "batch_size": 32, "lr": 0.1}


def train(executor: Executor, config: TrainConfig) -> None:
    """All rounds, in the windows that the flow would take."""
    forget_examples()
    with prepared(resolve(config), executor) as ready:
        done, size = 0, window_size(None, None)
        while done < config.rounds:
            for commit in executor.run(ready.job, done + 1, min(done + size, config.rounds)):
                done, size = commit.round, window_size(None, commit.seconds)


def seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def main(data: Annotated[str, typer.Argument()] = "digits", rounds: int = 6, repeats: int = 3) -> None:
    """Print the table."""
    table = Table("executor", "trained, s a round", "replayed", "ratio", "from", "to")
    with tempfile.TemporaryDirectory() as root, connect(None, 2) as client:
        executors = {"inline": InlineExecutor, "graph": lambda: GraphExecutor(client)}
        for name, opened in executors.items():
            pairs = []
            for number in range(repeats + 1):
                run = {"root": root, "name": f"{name}-{number}"}
                config = TrainConfig(**RECIPE, **run, data=data, rounds=rounds)
                where = {"executor": name, "scheduler": client.scheduler.address}
                again = ReplayConfig(run=run["name"], root=root, rounds="all", **where)
                trained = seconds(lambda config=config, opened=opened: train(opened(), config))
                pairs.append((trained, seconds(lambda again=again: replay(again))))
            pairs = pairs[1:]  # the first imports what is needed
            ratios = [after / before for before, after in pairs]
            medians = [statistics.median(column) / rounds for column in zip(*pairs, strict=True)]
            numbers = (*medians, statistics.median(ratios), min(ratios), max(ratios))
            table.add_row(name, *(f"{number:.3f}" for number in numbers))
    Console(width=100).print(table)


if __name__ == "__main__":
    typer.run(main)
