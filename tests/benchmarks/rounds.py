"""What benchmarks have in common: rounds that compute nothing, the time that work takes, and tables.

A run keeps this file, as its network and its algorithm are here.
"""

from __future__ import annotations

import os
import statistics
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Annotated, Any

import torch
import typer
from rich.console import Console
from rich.table import Table

from roundweave import Algorithm, Map, Mean, Sgd, TrainConfig, Update
from roundweave.flows.planning.plan import plan
from roundweave.flows.training.job import Prepared, prepare
from roundweave.tasks.executors.base import Executor

Numbers = Annotated[list[int], typer.Option()]
"""An option that may be given several times."""


def model(elements: int = 100) -> torch.nn.Module:
    """A network of one vector."""

    class Constant(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.weight = torch.nn.Parameter(torch.ones(elements))

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            return inputs * self.weight[0]

    return Constant()


def data(partition: int, partitions: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Examples that ask nothing of it."""
    return torch.zeros(2, 1), torch.zeros(2, 1)


@dataclass(frozen=True)
class Idle(Map):
    """Sends back a little of the parameters, after some seconds asleep, or of work."""

    taking: float
    busy: bool

    def __call__(self, objective, state, examples, carry, seed) -> Update:
        until, matrix = time.perf_counter() + self.taking, torch.ones(256, 256)
        while self.busy and time.perf_counter() < until:
            matrix = (matrix @ matrix).clamp(-1, 1)
        time.sleep(0 if self.busy else self.taking)
        return Update({name: vector * 1e-3 for name, vector in state.params.items()})


def algorithm(taking: float = 0.0, busy: bool = False) -> Algorithm:
    return Algorithm(Idle(taking, busy), Mean(), Sgd(1.0))


def idle(partitions: int, rounds: int, elements: int = 100, **more: Any) -> dict[str, Any]:
    """The fields of a configuration of such rounds."""
    own = {name: f"{__file__}:{name}" for name in ("model", "data", "algorithm")}
    sizes = {"partitions": partitions, "rounds": rounds, "held_out": 0, "model_options": {"elements": elements}}
    return own | sizes | more


@contextmanager
def begun(executor: Executor, /, **fields: Any) -> Iterator[Prepared]:
    """A run without Prefect, under a root of its own, which is deleted, if none is given."""
    with (
        tempfile.TemporaryDirectory() as root,
        prepare(plan(TrainConfig(**{"root": root} | fields)), executor) as ready,
    ):
        yield ready


def run(executor: Executor, ready: Prepared, first: int, last: int) -> float | None:
    """Do these rounds; gives the seconds of the last one, as it is recorded."""
    seconds = None
    for commit in executor.run(ready.job, first, last):
        seconds = commit.seconds
    return seconds


def windows(executor: Executor, ready: Prepared, size: int | None = None, done: int = 0) -> Iterator[float]:
    """Seconds a round, of each window: of those that the flow would take, or of one size."""
    recorded, rounds = None, ready.job.attempt.rounds
    while done < rounds:
        last, began = min(done + (size or ready.window(recorded)), rounds), time.perf_counter()
        recorded = run(executor, ready, done + 1, last)
        yield (time.perf_counter() - began) / (last - done)
        done = last


def seconds(work: Callable[[], object]) -> float:
    """How long it takes."""
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def markdown(heads: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table as Markdown, row by row."""
    for row in (heads, ["---"] * len(heads)):
        print(f"| {' | '.join(row)} |")
    for row in rows:
        print(f"| {' | '.join(row)} |", flush=True)


def medians(rows: Iterable[Sequence[float]]) -> list[float]:
    """Of each column."""
    return [statistics.median(column) for column in zip(*rows, strict=True)]


def spread(values: Sequence[float], digits: int = 2) -> str:
    """Mean and standard deviation."""
    deviation = statistics.stdev(values) if len(values) > 1 else 0.0
    return f"{statistics.mean(values):.{digits}f} ± {deviation:.{digits}f}"


def default_data() -> str | None:
    """MNIST, where it is said to lie."""
    folder = os.environ.get("ROUNDWEAVE_DATA")
    return f"mnist:{folder}/mnist" if folder else None


def show(heads: Iterable[str], rows: Iterable[Sequence[str]], title: str | None = None) -> None:
    """Print a table, and its rows as they come, too: some take an hour."""
    console, table = Console(width=140), Table(*heads, title=title)
    for row in rows:
        console.print(*row, markup=False, highlight=False)
        table.add_row(*row)
    console.print(table)
