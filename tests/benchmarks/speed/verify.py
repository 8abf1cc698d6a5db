"""How fast `roundweave verify` reads: its speed as a share of that of `sha256sum` on the same files.

    python -m tests.benchmarks.speed.verify [--repeats 5]

Not a test: it asserts nothing. The files are in memory; both are run by turns, the share is that of the medians.
`sha256sum` is one process with all names. The small run is of the size of the FedAvg recipe on MNIST, a network of
199,210 parameters on 10 partitions; the large one has 50 MB of parameters on 4 partitions.
"""

from __future__ import annotations

import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.table import Table

from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import Score, UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.upkeep.verifying.verify import verify
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec

MLP = {"1.weight": (200, 784), "1.bias": (200,), "3.weight": (200, 200), "3.bias": (200,), "5.weight": (10, 200)}
LARGE = {f"{layer}.weight": (1250, 1000) for layer in range(10)}


def stored(folder: Path, shapes: dict[str, tuple[int, ...]], partitions: int, rounds: int) -> Path:
    """A run of random numbers."""
    layout = Layout(tuple(TensorSpec(name, "float32", shape) for name, shape in shapes.items()))
    size = sum(spec.size for spec in layout.params)

    def state(round: int) -> State:
        return State({"float32": torch.rand(size)}, round=round)

    store = RoundStore.create(folder, Schema(layout, partitions), rounds, {}, state(0))
    for round in range(1, rounds + 1):
        after, records = state(round), {}
        store.tensors.write_state(after)
        for partition in range(partitions):
            update = Update({"float32": torch.rand(size)}, weight=600, metrics={"train_loss": 1.0})
            store.tensors.write_updates(round, {partition: update})
            records[partition] = UpdateRecord(update_digest(update), update.weight, metrics=update.metrics)
        commit = replace(
            store.describe(after, "benchmark", 0), updates=records, score=Score(1.0, {"accuracy": 0.5})
        )
        store.commit(commit)
    return store.path


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def compared(path: Path, repeats: int) -> tuple[float, float]:
    """The seconds of `verify` and of `sha256sum`, medians of so many turns; the first warms the cache."""
    names = [str(file) for file in sorted(path.rglob("*")) if file.is_file()]
    both: list[Callable[[], object]] = [
        lambda: verify(path),
        lambda: subprocess.run(["sha256sum", *names], check=True, capture_output=True),
    ]
    turns = [[seconds(work) for work in both] for _ in range(repeats + 1)][1:]
    ours, theirs = map(statistics.median, zip(*turns, strict=True))
    return ours, theirs


def main(repeats: int = 5) -> None:
    """Print the table."""
    table = Table("run", "files", "MB", "verify, MB/s", "sha256sum, MB/s", "share of its speed")
    with tempfile.TemporaryDirectory() as root:
        runs = {"MNIST recipe": (MLP, 10, 50), "50 MB parameters": (LARGE, 4, 4)}
        for name, (shapes, partitions, rounds) in runs.items():
            path = stored(Path(root, f"{partitions}.zarr"), shapes, partitions, rounds)
            seen = verify(path)
            assert seen.sound
            ours, theirs = compared(path, repeats)
            megabytes = seen.bytes / 1e6
            speeds = f"{megabytes / ours:.0f}", f"{megabytes / theirs:.0f}"
            table.add_row(name, str(seen.files), f"{megabytes:.0f}", *speeds, f"{theirs / ours:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
