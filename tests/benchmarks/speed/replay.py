"""What replaying all rounds of a run costs, beside training them.

    python -m tests.benchmarks.speed.replay [mnist:DIR] [--rounds 6] [--repeats 3]

Federated averaging of an mlp over ten partitions, a local epoch a round in batches of 32; trained and replayed in
turn, in this process and on two workers. Both begin with a configuration, and load the examples anew. Not a test:
it asserts nothing but that the bits are the same. It prints medians over the repeats, and the spread of the ratio.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from typing import Annotated, Any

import typer
from distributed import Client

from roundweave.flows.evidence.replaying import ReplayConfig, replay
from roundweave.tasks.data.partitions import forget_examples
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from tests.benchmarks.rounds import begun, medians, seconds, show, windows

RECIPE = {"model": "mlp", "model_options": {"hidden": 256}, "partitions": 10, "batch_size": 32, "lr": 0.1}


def train(client: Client | None, fields: dict[str, Any]) -> None:
    """All rounds, in the windows that the flow would take."""
    forget_examples()
    executor = GraphExecutor(client) if client else InlineExecutor()
    with begun(executor, **fields) as ready:
        for _ in windows(executor, ready):
            pass


def rows(client: Client, root: str, data: str, rounds: int, repeats: int) -> Iterator[list[str]]:
    for name, workers in (("inline", None), ("graph", client)):
        pairs = []
        for number in range(repeats + 1):
            run = {"root": root, "name": f"{name}-{number}"}
            fields = RECIPE | run | {"data": data, "rounds": rounds}
            where = {"executor": name, "scheduler": client.scheduler.address}
            again = ReplayConfig(run=run["name"], root=root, rounds="all", **where)
            trained = seconds(lambda workers=workers, fields=fields: train(workers, fields))
            pairs.append((trained, seconds(lambda again=again: replay(again))))
        pairs = pairs[1:]  # the first imports what is needed
        [ratio], ratios = medians([[b / a] for a, b in pairs]), [after / before for before, after in pairs]
        numbers = (*(each / rounds for each in medians(pairs)), ratio, min(ratios), max(ratios))
        yield [name, *(f"{number:.3f}" for number in numbers)]


def main(data: Annotated[str, typer.Argument()] = "digits", rounds: int = 6, repeats: int = 3) -> None:
    """Print the table."""
    with tempfile.TemporaryDirectory() as root, connect(None, 2) as client:
        heads = ("executor", "trained, s a round", "replayed", "ratio", "from", "to")
        show(heads, rows(client, root, data, rounds, repeats))


if __name__ == "__main__":
    typer.run(main)
