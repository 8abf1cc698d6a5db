"""What one worker receives and holds for a round's reduce, with and without a tree of folds before it.

    python -m tests.benchmarks.scaling.reducer [--blocks 16 --blocks 64] [--elements 2500000] [--rounds 3]

A worker process for each block of one partition, whose maps compute nothing. Not a test: it asserts nothing. It
prints, of all workers and rounds but the first, the most results of each kind that one received (each is as large
as the state), by how much its memory grew since it began, and the median time of a round.
"""

from __future__ import annotations

import os
import re
import statistics
from collections.abc import Iterator
from pathlib import Path

import typer
from distributed import Client, Worker

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import FAN_IN, GraphExecutor
from tests.benchmarks.rounds import Numbers, begun, idle, run, seconds, show

KINDS = ("map", "fold", "reduce")
"""The results that travel: of blocks, of folds, and the state."""

STATUS = Path("/proc/self/status")


def memory(of: str) -> int:
    """What the system tells of this process's memory, in bytes."""
    told = re.search(rf"{of}:\s*(\d+) kB", STATUS.read_text())
    return int(told[1]) * 1024 if told else 0


def begin(dask_worker: Worker) -> None:
    """On a worker: what it received so far does not count, nor what it held before the first round."""
    Path("/proc/self/clear_refs").write_text("5")
    dask_worker.transfer_incoming_log.clear()
    dask_worker.began_with = getattr(dask_worker, "began_with", memory("VmRSS"))


def received(dask_worker: Worker) -> dict[str, int]:
    """On a worker: how many results it received since, by kind, and by how many bytes its memory grew."""
    found = dict.fromkeys(KINDS, 0)
    for transfer in dask_worker.transfer_incoming_log:
        for key in transfer["keys"]:
            if key[0] in found:
                found[key[0]] += 1
    return found | {"memory": memory("VmHWM") - dask_worker.began_with, "process": os.getpid()}


def measured(client: Client, fan_in: int, blocks: int, elements: int, rounds: int) -> list[str]:
    """A row of the table, from the second round on."""
    executor, times, most = GraphExecutor(client, fan_in=fan_in), list[float](), list[dict[str, int]]()
    with begun(executor, **idle(blocks, rounds, elements)) as ready:
        for round in range(1, rounds + 1):
            client.run(begin)
            times.append(seconds(lambda round=round: run(executor, ready, round, round)))
            if round > 1:
                most += client.run(received).values()
    largest = [max(each[kind] for each in most) for kind in KINDS]
    all_results = max(sum(each[kind] for kind in KINDS) for each in most) * elements * 4 / 1e6
    grown = max(each["memory"] for each in most) / 1e6
    label = str(fan_in) if fan_in < blocks else "all"
    numbers = (*map(str, largest), f"{all_results:.0f}", f"{grown:.0f}", f"{statistics.median(times[1:]):.2f}")
    return [str(blocks), label, *numbers]


def rows(blocks: list[int], elements: int, rounds: int) -> Iterator[list[str]]:
    for number in blocks:
        for fan_in in (number, FAN_IN if number > FAN_IN else 4):
            with connect(None, number) as client:  # a process keeps the memory that it had once
                yield measured(client, fan_in, number, elements, rounds)


def main(blocks: Numbers = [16, 64], elements: int = 2_500_000, rounds: int = 3) -> None:  # noqa: B006
    """Print the table."""
    kinds = (f"{kind}s" for kind in KINDS)
    show(("blocks", "fan-in", *kinds, "received, MB", "memory, MB", "s a round"), rows(blocks, elements, rounds))


if __name__ == "__main__":
    typer.run(main)
