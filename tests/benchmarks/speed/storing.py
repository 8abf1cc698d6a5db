"""What storing every round costs: beside rounds that keep nothing, and against writing the same bytes.

    python -m tests.benchmarks.speed.storing [mnist:DIR] [--rounds 6] [--repeats 3]

Two kinds of rounds, in one process, stored and not stored in turn: federated averaging of an mlp over ten
partitions, a local epoch a round in batches of 32; and a network of 50 MB over four partitions whose rounds take
about a second. Not a test: it asserts nothing. It prints medians over the repeats.
"""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.storage.rounds.pruned import Pruned
from roundweave.storage.values.state import Update
from roundweave.tasks.algorithms.algebra import Algorithm, Map
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import Job
from roundweave.tasks.rounds.steps import score_block
from tests.benchmarks.quality.runs import pure_rounds

ELEMENTS = 12_500_000
"""Of float32: 50 MB."""

SECONDS = 0.25
"""What a map of the wide network takes: a round of four takes a second."""


@dataclass(frozen=True)
class Busy(Map):
    """Computes for a while, and sends back a little of the parameters."""

    def __call__(self, objective, state, examples, carry, seed) -> Update:
        until, matrix = time.perf_counter() + SECONDS, torch.ones(256, 256)
        while time.perf_counter() < until:
            matrix = (matrix @ matrix).clamp(-1, 1)
        return Update({name: vector * 1e-3 for name, vector in state.params.items()})


def busy() -> Algorithm:
    return Algorithm(Busy(), Mean(), Sgd(1.0))


def wide() -> torch.nn.Module:
    class Wide(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(ELEMENTS))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.weight[0]

    return Wide()


def data() -> tuple[torch.Tensor, torch.Tensor]:
    return torch.zeros(8, 1), torch.zeros(8, 1)


def not_stored(job: Job, rounds: int) -> None:
    """The same rounds by the pure steps alone: nothing is digested or written."""
    loaded = {partition: job.work.partitions.load(0, partition) for partition in range(job.plan.partitions)}
    for outcome in pure_rounds(job, loaded, rounds):
        score_block(job.work, outcome.state, loaded)


def measured(fields: dict[str, Any], rounds: int) -> Iterator[tuple[str, float]]:
    """Seconds a round: not stored, stored, and what writing the files that came of it takes; ratios of bytes."""
    with tempfile.TemporaryDirectory() as root:
        config, executor = TrainConfig(**fields, rounds=rounds, root=root, name="run"), InlineExecutor()
        with prepared(resolve(config), executor) as ready:
            before = {path: path.stat().st_mtime_ns for path in Path(root).rglob("*") if path.is_file()}
            yield "not stored", timed(lambda: not_stored(ready.job, rounds)) / rounds
            yield "stored", timed(lambda: list(executor.run(ready.job, 1, rounds))) / rounds
            written = [path for path in Path(root).rglob("*") if path.is_file() and path not in before]
            tensors = ready.store.tensors
            # The initial state was there before.
            raw = tensors.kept_bytes(rounds, Pruned()) - tensors.schema.stored_bytes(1, 0)
        contents = [path.read_bytes() for path in written]
        with tempfile.TemporaryDirectory(dir=root) as copy:
            yield "written", timed(lambda: write_again(Path(copy), contents)) / rounds
        yield "bytes on disk / of tensors", sum(map(len, contents)) / raw


def timed(work: Any) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def write_again(folder: Path, contents: list[bytes]) -> None:
    """The same bytes by open, write and rename."""
    for number, content in enumerate(contents):
        with (folder / "partial").open("wb", buffering=0) as file:
            file.write(content)
        (folder / "partial").replace(folder / str(number))


def main(source: Annotated[str, typer.Argument()] = "digits", rounds: int = 6, repeats: int = 3) -> None:
    """Measure and print."""
    here = Path(__file__).resolve()
    kinds: dict[str, dict[str, Any]] = {
        "the recipe": {"data": source, "partitions": 10, "local_epochs": 1, "batch_size": 32, "lr": 0.1},
        "50 MB": {
            "data": f"{here}:data",
            "model": f"{here}:wide",
            "algorithm": f"{here}:busy",
            "held_out": 0.0,
            "partitions": 4,
        },
    }
    names = ("not stored", "stored", "written", "bytes on disk / of tensors")
    table = Table("rounds", *names, "stored / not", "storing / writing", box=None)
    for kind, fields in kinds.items():
        all_repeats = [dict(measured(fields, rounds)) for _ in range(repeats)]
        medians = [statistics.median(each[name] for each in all_repeats) for name in names]
        ratio = statistics.median(each["stored"] / each["not stored"] for each in all_repeats)
        cost = statistics.median((each["stored"] - each["not stored"]) / each["written"] for each in all_repeats)
        table.add_row(kind, *(f"{value:.4f}" for value in medians), f"{ratio:.3f}", f"{cost:.2f}")
    Console(width=140).print(table)


if __name__ == "__main__":
    typer.run(main)
