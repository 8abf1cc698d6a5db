"""What one slow worker of six does to the pace of training, and to how much each partition is heard.

    PYTHONPATH=. python -m tests.benchmarks.speed.slow_worker [sync_sgd async_sgd …] [--rounds 60]

Six worker processes are started by hand, a partition of the digits each. A map sleeps for 30 times a millisecond,
so that six fit on two cores. Then one worker is slowed ten times: its process is stopped for 18 ms of every 20
(SIGSTOP, SIGCONT), so that its messages wait too; or only its network sleeps ten times as long, told by the
environment. Updates a second leave out the first second; of a synchronous algorithm a round has six. "slower" is
the median time of a map on that worker as a multiple of the others', "its share" is of the updates that it made.
Not a test: it asserts nothing.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from distributed import Client

import roundweave as rw
from roundweave.tasks.algorithms.table import build_algorithm
from roundweave.tasks.algorithms.when import Asynchronous
from roundweave.tasks.executors.clusters.connecting import HERE
from roundweave.tasks.executors.clusters.fork_server import WORKER_ENVIRONMENT
from roundweave.tasks.executors.clusters.plugins import prompt
from tests.benchmarks.peers.server.learning import rate
from tests.benchmarks.rounds import show
from tests.benchmarks.speed import pacing
from tests.flows.prefect_server import until
from tests.victims import kill, start

WORKERS = 6
SLOWED = 10
PERIOD_SECONDS = 0.020


@dataclass(frozen=True)
class Cluster:
    """A scheduler's file, and the process of the worker that is slowed."""

    file: Path
    slow: int


@dataclass(frozen=True)
class Pace:
    """Updates a second, shares of the partitions and of the slow worker, and how much longer its maps take."""

    updates: float
    shares: list[float]
    slow_share: float
    slower: float


@contextmanager
def cluster(**variables: str) -> Iterator[Cluster]:
    """A scheduler and the workers, of which one has these environment variables."""
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        file = folder / "scheduler.json"

        def dask(*words: str, **more: str) -> int:
            line = [sys.executable, "-m", "dask", *words, "--scheduler-file", str(file), "--no-dashboard"]
            process = start(line, folder, **WORKER_ENVIRONMENT, **more)
            stack.callback(kill, process)
            return process.pid

        dask("scheduler", "--host", HERE, "--port", "0")
        until(lambda: file.exists() and file.stat().st_size > 0)
        options = ("--nthreads", "1", "--no-nanny", "--memory-limit", "0")
        first, *_ = [dask("worker", *options, **({} if number else variables)) for number in range(WORKERS)]
        client = stack.enter_context(Client(scheduler_file=str(file), set_as_default=False))
        client.wait_for_workers(WORKERS, timeout=60)
        prompt(client)  # as on a cluster that Roundweave starts
        yield Cluster(file, first)


def stop_and_go(process: int) -> None:
    """Let a process run for a tenth of the time, for ever."""
    while True:
        os.kill(process, signal.SIGCONT)
        time.sleep(PERIOD_SECONDS / SLOWED)
        os.kill(process, signal.SIGSTOP)
        time.sleep(PERIOD_SECONDS * (1 - 1 / SLOWED))


@contextmanager
def stopped(process: int) -> Iterator[None]:
    """Slow a process. What does it is a process too: a thread would wait for those of the client."""
    slowing = multiprocessing.get_context("spawn").Process(target=stop_and_go, args=(process,))
    slowing.start()
    try:
        yield
    finally:
        slowing.terminate()
        slowing.join()
        os.kill(process, signal.SIGCONT)


def train(there: Cluster, algorithm: str, rounds: int) -> Pace:
    """Train anew on the workers, as many updates as so many synchronous rounds have."""
    when = build_algorithm(algorithm, {}).when
    every = rounds * WORKERS // when.buffer if isinstance(when, Asynchronous) else rounds
    with tempfile.TemporaryDirectory() as root:
        fields = {"algorithm": algorithm, "batch_size": 32, "model": f"{pacing.__file__}:paced"}
        where = {"partitions": WORKERS, "scheduler": str(there.file), "root": root}
        config = rw.TrainConfig(**fields, **where, rounds=every, evaluate_every=every)
        run = rw.train(config)
        updates = [pair for round in range(1, every + 1) for pair in run.round(round).commit.updates.items()]
        history = run.history()
    each_round = len(updates) / every
    return pace(updates, rate(history["seconds"].cumsum().tolist()) * each_round, there.slow)


def pace(updates: list[tuple[int, Any]], updates_a_second: float, slow: int) -> Pace:
    """From all updates with their partitions."""
    there = [update.seconds for _, update in updates if update.worker.endswith(f":{slow}")]
    elsewhere = [update.seconds for _, update in updates if not update.worker.endswith(f":{slow}")]
    slower = statistics.median(there) / statistics.median(elsewhere) if there and elsewhere else float("nan")
    numbers = [partition for partition, _ in updates]
    shares = sorted((numbers.count(partition) / len(updates) for partition in range(WORKERS)), reverse=True)
    return Pace(updates_a_second, shares, len(there) / len(updates), slower)


def paces(algorithm: str, rounds: int) -> Iterator[tuple[str, Pace]]:
    """Undisturbed, and slowed in both ways."""
    with cluster() as there:
        yield "none", train(there, algorithm, rounds)
        with stopped(there.slow):
            yield "stopped", train(there, algorithm, rounds)
    with cluster(**{pacing.SLOWER: str(SLOWED)}) as there:
        yield "sleeps longer", train(there, algorithm, rounds)


def main(algorithms: Annotated[list[str] | None, typer.Argument()] = None, rounds: int = 60) -> None:
    """Print the table."""

    def rows() -> Iterator[list[str]]:
        for algorithm in algorithms or ["sync_sgd", "async_sgd"]:
            undisturbed = None
            for disturbance, seen in paces(algorithm, rounds):
                undisturbed = undisturbed or seen.updates
                shares = " ".join(f"{share:.2f}" for share in seen.shares)
                numbers = f"{seen.updates:.1f}", f"{seen.updates / undisturbed:.2f}", f"{seen.slower:.1f}"
                yield [algorithm, disturbance, *numbers, shares, f"{seen.slow_share:.2f}"]

    heads = ("updates a second", "of undisturbed", "slower", "shares of partitions", "its share")
    show(("algorithm", "slow worker", *heads), rows())


if __name__ == "__main__":
    typer.run(main)
