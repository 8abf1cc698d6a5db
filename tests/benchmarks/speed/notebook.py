"""What looking at a long run costs: milliseconds to open it, to show it, and to have its tables.

    python -m tests.benchmarks.speed.notebook [--rounds 1000] [--partitions 4]

Not a test: it asserts nothing. Each number is the median of five, in a process that has done it once; the last
column is the share of 100 ms, in which a run of 1,000 rounds must be shown.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import torch
import typer
from rich.console import Console
from rich.table import Table

from roundweave.flows.stored import Run
from roundweave.storage.hierarchy.schema import Schema
from roundweave.storage.rounds.commits import Score, UpdateRecord
from roundweave.storage.rounds.store import RoundStore
from roundweave.storage.values.digests import update_digest
from roundweave.storage.values.state import Layout, State, Update
from roundweave.storage.values.tensors import TensorSpec

LAYOUT = Layout(tuple(TensorSpec(f"layer{number}.weight", "float32", (8,)) for number in range(20)))
LIMIT = 100.0


def written(folder: Path, rounds: int, partitions: int) -> Path:
    """A run of so many rounds, in which the only thing that is small is the network."""
    vectors = {"float32": torch.ones(sum(spec.size for spec in LAYOUT.params))}
    attributes = {"config": {"algorithm": {"name": "fed_avg"}, "data": "digits"}, "created": 1.0}
    store = RoundStore.create(folder / "long.zarr", Schema(LAYOUT, partitions), rounds, attributes, State(vectors))
    update = Update(vectors)
    record = UpdateRecord(update_digest(update), 100, metrics={"train_loss": 1.0}, seconds=0.1, worker="host:1")
    for round in range(1, rounds + 1):
        state = State(vectors, round=round)
        store.tensors.write_state(state)
        for partition in range(partitions):
            store.tensors.write_updates(round, {partition: update})
        fields = {
            "updates": dict.fromkeys(range(partitions), record),
            "score": Score(1 / round, {"accuracy": 0.5}, 9),
        }
        store.commit(replace(store.describe(state, "writer", 1), **fields))
    return store.path


def milliseconds(what: Callable[[], object]) -> float:
    """The median of five, after one that does not count."""
    spent = []
    for _ in range(6):
        began = time.perf_counter()
        what()
        spent.append((time.perf_counter() - began) * 1e3)
    return statistics.median(spent[1:])


def main(rounds: int = 1000, partitions: int = 4) -> None:
    """Print the table."""
    table = Table("what", "ms", "of 100 ms", title=f"{rounds} rounds of {partitions} partitions")
    with tempfile.TemporaryDirectory() as folder:
        path = written(Path(folder), rounds, partitions)
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
            spent = milliseconds(look)
            table.add_row(name, f"{spent:.2f}", f"{spent / LIMIT:.2f}")
    Console().print(table)


if __name__ == "__main__":
    typer.run(main)
