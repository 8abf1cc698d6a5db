"""What a round costs by partitions and by tasks, and the scheduler's part of it.

    python -m tests.benchmarks.scaling.scheduler [--workers 4 --workers 16 --workers 64] [--rounds 8]

The first table has two workers and ever more partitions, the second a partition for each of ever more workers,
which are processes; maps compute nothing. CPU is that of the scheduler's thread, where the client hears of tasks,
too, and that of all workers. Not a test: it asserts nothing. It prints medians over windows.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from functools import partial

import typer
from distributed import Client

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import FAN_IN, GraphExecutor
from tests.benchmarks.rounds import Numbers, begun, idle, medians, run, seconds, show


def spent(client: Client, work: Callable[[], object]) -> list[float]:
    """Seconds that some work takes: by the clock, CPU time of the scheduler's thread, and that of all workers."""
    workers = sum(client.run(time.process_time).values())  # this is work for the scheduler, too
    scheduler = client.run_on_scheduler(time.thread_time)
    clock = seconds(work)
    scheduler = client.run_on_scheduler(time.thread_time) - scheduler
    return [clock, scheduler, sum(client.run(time.process_time).values()) - workers]


def measured(client: Client, partitions: int, rounds: int, window: int, fan_in: int = FAN_IN) -> list[float]:
    """Seconds a round: the clock, the scheduler's CPU, the workers' CPU."""
    executor, each, last = GraphExecutor(client, fan_in=fan_in), list[list[float]](), rounds * window + 1
    with begun(executor, **idle(partitions, last)) as ready:
        run(executor, ready, 1, 1)
        for first in range(2, last + 1, window):
            took = spent(client, partial(run, executor, ready, first, first + window - 1))
            each.append([taken / window for taken in took])
    return medians(each)


def tasks(blocks: int, fan_in: int) -> int:
    """Tasks of a round: maps, scores, folds, the reduce and the commit."""
    folds, results = 0, blocks
    while results > fan_in:
        results = -(-results // fan_in)
        folds += results
    return 2 * blocks + folds + 2


def by_partitions(sizes: list[int], rounds: int) -> Iterator[list[str]]:
    """What rounds of two blocks cost."""
    with connect(None, 2) as client:
        for partitions in sizes:
            clock, scheduler, workers = measured(client, partitions, 3 if partitions > 1000 else rounds, 1)
            numbers = clock * 1e3, clock * 1e6 / partitions, scheduler * 1e3, workers * 1e3
            yield [str(partitions), *(f"{number:.1f}" for number in numbers)]


def by_tasks(sizes: list[int], rounds: int, window: int) -> Iterator[list[str]]:
    """What rounds of a block for each worker cost, without folds and with them."""
    for number in sizes:
        with connect(None, number) as client:
            for fan_in in (number, FAN_IN, number, FAN_IN) if number > FAN_IN else (number,):
                clock, scheduler, workers = measured(client, number, rounds, window, fan_in)
                count = tasks(number, fan_in)
                numbers = clock * 1e3, scheduler * 1e3, scheduler * 1e6 / count, workers * 1e3
                yield [str(number), str(fan_in), str(count), *(f"{each:.1f}" for each in numbers)]


CPU = "scheduler, CPU ms"


def main(
    workers: Numbers = [4, 16, 64],  # noqa: B006
    partitions: Numbers = [4, 100, 1000, 10_000],  # noqa: B006
    rounds: int = 8,
    window: int = 5,
) -> None:
    """Print the tables."""
    heads = ("partitions", "ms a round", "us a partition", CPU, "workers, CPU ms")
    show(heads, by_partitions(partitions, rounds))
    heads = ("workers", "fan-in", "tasks", "ms a round", CPU, "CPU us a task", "workers, CPU ms")
    show(heads, by_tasks(workers, rounds, window))


if __name__ == "__main__":
    typer.run(main)
