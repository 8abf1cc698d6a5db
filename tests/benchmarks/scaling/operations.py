"""What a round asks of the store: operations by partitions, and how many a second a disk and a bucket give.

    python -m tests.benchmarks.scaling.operations [--elements 300000] [--rounds 5]

Rounds of one process that compute nothing, on a disk, where the system's calls are counted, and in a bucket (moto,
whose requests a proxy counts). Not a test: it asserts nothing. The speed of a bucket here is that of moto, one
process in Python; what counts is how many requests there are.
"""

from __future__ import annotations

import os
import statistics
import sys
import tempfile
import time
from collections import Counter
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.tasks.executors.inline import InlineExecutor
from tests.benchmarks.speed import noop
from tests.benchmarks.speed.constant import CONSTANT
from tests.storage.places.far_away import far_away
from tests.storage.places.s3_server import s3_server

CALLS = ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.listdir", "os.scandir")
"""The calls of the system that Python tells of."""

counted: Counter[str] = Counter()


def count(event: str, arguments: object) -> None:
    """Told of all that Python audits."""
    if event in CALLS:
        counted[event] += 1


def seconds(root: str, partitions: int, elements: int, rounds: int) -> tuple[float, float]:
    """The clock and the CPU time of a round, medians of those after the first."""
    own = CONSTANT | {"algorithm": f"{noop.__file__}:algorithm", "model_options": {"elements": elements}}
    fields = {"partitions": partitions, "rounds": rounds + 1, "root": root, "held_out": 0}
    executor, each = InlineExecutor(), list[tuple[float, float]]()
    with prepared(resolve(TrainConfig(**own, **fields)), executor) as ready:
        list(executor.run(ready.job, 1, 1))
        counted.clear()
        for round in range(2, rounds + 2):
            began = time.perf_counter(), time.process_time()
            list(executor.run(ready.job, round, round))
            each.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    clock, processor = (statistics.median(column) for column in zip(*each, strict=True))
    return clock, processor


def on_disk(sizes: list[int], elements: int, rounds: int) -> Table:
    """The system's calls of a round."""
    columns = ("partitions", "calls a round", *CALLS[:3], "ms", "CPU ms", "calls/s", "MB/s")
    table = Table(*columns, title="a disk", box=None)
    for partitions in sizes:
        with tempfile.TemporaryDirectory() as root:
            clock, processor = seconds(root, partitions, elements, rounds)
        calls = counted.total() / rounds
        megabytes = (partitions + 1) * elements * 4 / 1e6
        named = (f"{counted[call] / rounds:.0f}" for call in CALLS[:3])
        numbers = clock * 1e3, processor * 1e3, calls / clock, megabytes / clock
        table.add_row(str(partitions), f"{calls:.0f}", *named, *(f"{number:.0f}" for number in numbers))
    return table


def in_a_bucket(sizes: list[int], elements: int, rounds: int) -> Table:
    """The requests of a round."""
    table = Table("partitions", "requests a round", "ms", "CPU ms", "requests/s", title="a bucket", box=None)
    with s3_server() as server, far_away(server.port, 0.0) as proxy:
        os.environ.update(server.environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
        for partitions in sizes:
            requests: list[int] = []
            for number in (1, rounds):  # the difference is what rounds take
                before = proxy.requests
                clock, processor = seconds(server.bucket(), partitions, elements, number)
                requests.append(proxy.requests - before)
            each = (requests[1] - requests[0]) / (rounds - 1)
            numbers = each, clock * 1e3, processor * 1e3, each / clock
            table.add_row(str(partitions), *(f"{number:.0f}" for number in numbers))
    return table


def main(
    partitions: Annotated[list[int], typer.Option()] = [1, 10, 100, 1000],  # noqa: B006
    elements: int = 100,
    rounds: int = 5,
) -> None:
    """Print the tables."""
    sys.addaudithook(count)
    for table in (
        on_disk([*partitions, 10 * partitions[-1]], elements, rounds),
        on_disk(partitions[:3], 300_000, rounds),
        in_a_bucket(partitions[:3], elements, rounds),
    ):
        Console(width=120).print(table)


if __name__ == "__main__":
    typer.run(main)
