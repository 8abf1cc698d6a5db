"""What a bucket far away costs: requests and milliseconds a round, and what opening a long run takes.

    python -m tests.benchmarks.speed.objects [--delay 0.03] [--rounds 21] [--elements 100000]

Rounds of four partitions that take a second, on a disk and in a bucket: a server of S3 (moto) behind a proxy that
makes each request wait, both processes of their own. Not a test: it asserts nothing.
"""

from __future__ import annotations

import os
import tempfile
import time
from dataclasses import dataclass

import typer
from rich.console import Console
from rich.table import Table

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import prepared
from roundweave.flows.stored import Run
from roundweave.storage.values.state import Update
from roundweave.tasks.algorithms.algebra import Algorithm, Map
from roundweave.tasks.algorithms.applies.optimizers import Sgd
from roundweave.tasks.algorithms.reduces.mean import Mean
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import window_size
from tests.benchmarks.speed.constant import CONSTANT
from tests.storage.places.far_away import Proxy, far_away
from tests.storage.places.s3_server import s3_server

SECONDS = 0.25
"""What a map takes; two workers have four of them for a round in half a second, one process in one."""


@dataclass(frozen=True)
class Sleeping(Map):
    """Sends back a little of the parameters, after some time."""

    seconds: float = SECONDS

    def __call__(self, objective, state, examples, carry, seed) -> Update:
        time.sleep(self.seconds)
        return Update({name: vector * 1e-3 for name, vector in state.params.items()})


def algorithm() -> Algorithm:
    return Algorithm(Sleeping(), Mean(), Sgd(1.0))


def algorithm_of_two() -> Algorithm:
    return Algorithm(Sleeping(2 * SECONDS), Mean(), Sgd(1.0))


def run_rounds(executor: Executor, root: str, name: str, rounds: int, elements: int) -> float:
    """Milliseconds a round: the time of all rounds after the first window."""
    which = "algorithm" if isinstance(executor, InlineExecutor) else "algorithm_of_two"
    fields = CONSTANT | {"algorithm": f"{__file__}:{which}"}
    options = {"partitions": 4, "rounds": rounds, "root": root, "name": name, "held_out": 0}
    config = TrainConfig(**fields, **options, model_options={"elements": elements})
    with prepared(resolve(config), executor) as ready:
        for _ in executor.run(ready.job, 1, 1):
            pass
        began, first = time.perf_counter(), 2
        while first <= rounds:
            size = window_size(None, 1.0, long=ready.store.tensors.slow)
            last = min(first + size - 1, rounds)
            for _ in executor.run(ready.job, first, last):
                pass
            first = last + 1
        return (time.perf_counter() - began) * 1e3 / (rounds - 1)


def long_run(root: str, proxy: Proxy, rounds: int) -> tuple[int, int]:
    """Requests a round of rounds that take no time, and requests to open them with their history."""
    fields = {"partitions": 4, "rounds": rounds, "root": root, "name": "long", "held_out": 0}
    config = TrainConfig(**CONSTANT, **fields, algorithm=f"{__file__}:at_once", model_options={"elements": 10})
    with prepared(resolve(config), InlineExecutor()) as ready:
        before = proxy.requests
        for _ in InlineExecutor().run(ready.job, 1, rounds):
            pass
        a_round = (proxy.requests - before) // rounds
    before = proxy.requests
    Run(f"{root}/long.zarr").history()
    return a_round, proxy.requests - before


def at_once() -> Algorithm:
    return Algorithm(Sleeping(0.0), Mean(), Sgd(1.0))


def main(delay: float = 0.03, rounds: int = 21, elements: int = 100_000, long: int = 1000) -> None:
    """Print the tables."""
    table = Table("executor", "disk", f"bucket, {delay * 1e3:.0f} ms a request", "ratio", title="ms a round")
    with tempfile.TemporaryDirectory() as folder, s3_server() as server, far_away(server.port, delay) as proxy:
        os.environ.update(server.environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
        bucket = server.bucket()
        with connect(None, 2) as client:
            for label, executor in (("inline", InlineExecutor()), ("graph", GraphExecutor(client))):
                times = [run_rounds(executor, root, label, rounds, elements) for root in (folder, bucket)]
                ratio = f"{times[1] / times[0]:.3f}"
                table.add_row(label, *(f"{each:.0f}" for each in times), ratio)
        Console().print(table)
        proxy.seconds = 0.0  # the long run is made quickly
        bucket = server.bucket()
        a_round, opening = long_run(bucket, proxy, long)
        proxy.seconds = delay
        assert proxy.requests
        run, began = Run(f"{bucket}/long.zarr"), time.perf_counter()
        run.refresh().history()
        spent = (time.perf_counter() - began) * 1e3
    Console().print(f"a round of four partitions: {a_round} requests; it has no scores and no metrics")
    Console().print(f"opening {long} rounds and their history: {opening} requests, {spent:.0f} ms")


if __name__ == "__main__":
    typer.run(main)
