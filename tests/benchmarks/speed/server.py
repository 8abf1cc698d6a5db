"""Updates a second of asynchronous SGD on two workers, beside parameter servers by a Dask actor and torch's RPC.

    PYTHONPATH=. python -m tests.benchmarks.speed.server [mnist:DIR] [--seconds 6] [--updates 600] [--repeats 3]

Each sends gradients of an mlp with 203,530 parameters of float32 in batches of 32, with one thread a process; the
examples are MNIST's, as a default those in $ROUNDWEAVE_DATA, or without it noise of that shape. The peers keep
nothing, Roundweave stores every update. The first second of each does not count. Not a test: it asserts nothing.
All are run by turns; it prints medians over the repeats, and the median and spread of each turn's ratio.
"""

from __future__ import annotations

import os
import statistics
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import typer
from rich.console import Console
from rich.table import Table

import roundweave as rw
from roundweave.tasks.data.sources.table import find_source
from tests.benchmarks.peers.server import dask_actor, torch_rpc
from tests.benchmarks.peers.server.learning import BATCH, LR, rate

EXAMPLES = 8000
HELD_OUT = 100
OURS = "Roundweave"


def write_examples(data: str | None, file: Path) -> None:
    """The first examples of MNIST, or noise, as arrays that all read."""
    if data is None:
        random = np.random.default_rng(0)
        x = random.random((EXAMPLES, 1, 28, 28), dtype=np.float32)
        y = random.integers(0, 10, EXAMPLES)
    else:
        train = find_source(data).load().train
        x, y = train.inputs[:EXAMPLES].float().numpy().reshape(-1, 1, 28, 28), train.targets[:EXAMPLES].numpy()
    np.savez(file, x=x, y=y, x_held_out=x[:HELD_OUT], y_held_out=y[:HELD_OUT])


def roundweave(
    file: Path, algorithm: str, options: dict[str, Any], updates: int, executor: str, keep: str
) -> float:
    """Updates a second with two partitions, stored as `keep` says; of a synchronous algorithm a round has two."""
    with tempfile.TemporaryDirectory() as root:
        config = rw.TrainConfig(
            algorithm=algorithm,
            lr=LR,
            batch_size=BATCH,
            **options,
            model="mlp",
            model_options={"hidden": 256},
            data=f"npz:{file}",
            partitions=2,
            rounds=updates,
            evaluate_every=updates,
            executor=executor,
            keep=keep,
            workers=2,
            root=root,
        )
        history = rw.train(config).history()
    return rate(history["seconds"].cumsum().tolist()) * history["accepted"].iloc[1:].mean()


def contenders(
    file: Path,
    seconds: float,
    updates: int,
    algorithm: str,
    options: dict[str, Any],
    executor: str = "graph",
    keep: str = "all",
) -> dict[str, Callable[[], float]]:
    """What measures the updates a second of each, by its name."""
    return {
        "Dask actor beside a worker": partial(dask_actor.updates_a_second, file, seconds),
        "Dask actor, a process of its own": partial(dask_actor.updates_a_second, file, seconds, apart=True),
        "torch RPC": partial(torch_rpc.updates_a_second, file, seconds),
        OURS: partial(roundweave, file, algorithm, options, updates, executor, keep),
    }


def default_data() -> str | None:
    """MNIST, where it is there."""
    folder = os.environ.get("ROUNDWEAVE_DATA")
    return f"mnist:{folder}/mnist" if folder else None


def rows(turns: list[dict[str, float]]) -> list[list[str]]:
    """A line for each, the fastest last, beside what Roundweave has of it."""
    medians = {name: statistics.median(turn[name] for turn in turns) for name in turns[0]}
    lines = []
    for name in sorted(medians, key=lambda name: medians[name]):
        ratios = sorted(turn[OURS] / turn[name] for turn in turns)
        spread = f"{statistics.median(ratios):.2f} ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        lines.append([name, f"{medians[name]:.0f}", spread])
    return lines


def main(
    data: Annotated[str | None, typer.Argument()] = None,
    seconds: float = 6.0,
    updates: int = 600,
    repeats: int = 3,
    algorithm: str = "async_sgd",
    option: Annotated[list[str] | None, typer.Option(help="NAME=VALUE of the algorithm")] = None,
) -> None:
    """Print the table."""
    console = Console()
    options = dict(pair.split("=", 1) for pair in option or [])
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder, "examples.npz")
        write_examples(data or default_data(), file)
        turns = []
        for turn in range(repeats):
            turns.append({})
            for name, measured in contenders(file, seconds, updates, algorithm, options).items():
                console.print(f"turn {turn + 1}: {name}")
                turns[-1][name] = measured()
    table = Table("", "updates a second", f"{OURS} ({algorithm}) of it")
    for row in rows(turns):
        table.add_row(*row)
    console.print(table)


if __name__ == "__main__":
    typer.run(main)
