"""What a round asks of the store: operations by partitions, and how many a second a disk and a bucket give.

    python -m tests.benchmarks.scaling.operations [--elements 300000] [--rounds 5]

Rounds of one process that compute nothing, on a disk, where the system's calls are counted, and in a bucket (moto,
whose requests a proxy counts). Not a test: it asserts nothing. The speed of a bucket here is that of moto, one
process in Python; what counts is how many requests there are.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Iterator

import typer

from roundweave.tasks.executors.inline import InlineExecutor
from tests.benchmarks.rounds import Numbers, begun, idle, medians, run, show
from tests.storage.places.far_away import far_away
from tests.storage.places.s3_server import s3_server

CALLS = ("open", "os.rename", "os.link", "os.mkdir", "os.remove", "os.listdir", "os.scandir")
"""The calls of the system that Python tells of."""

counted: Counter[str] = Counter()


def count(event: str, arguments: object) -> None:
    """Told of all that Python audits."""
    if event in CALLS:
        counted[event] += 1


def seconds(partitions: int, elements: int, rounds: int, **place: str) -> list[float]:
    """The clock and the CPU time of a round, medians of those after the first."""
    executor, each = InlineExecutor(), list[tuple[float, float]]()
    with begun(executor, **idle(partitions, rounds + 1, elements), **place) as ready:
        run(executor, ready, 1, 1)
        counted.clear()
        for round in range(2, rounds + 2):
            began = time.perf_counter(), time.process_time()
            run(executor, ready, round, round)
            each.append((time.perf_counter() - began[0], time.process_time() - began[1]))
    return medians(each)


def on_disk(sizes: list[int], elements: int, rounds: int) -> Iterator[list[str]]:
    """The system's calls of a round."""
    for partitions in sizes:
        clock, processor = seconds(partitions, elements, rounds)
        calls = counted.total() / rounds
        megabytes = (partitions + 1) * elements * 4 / 1e6
        named = (counted[call] / rounds for call in CALLS[:3])
        numbers = calls, *named, clock * 1e3, processor * 1e3, calls / clock, megabytes / clock
        yield [str(partitions), *(f"{number:.0f}" for number in numbers)]


def in_a_bucket(sizes: list[int], elements: int, rounds: int) -> Iterator[list[str]]:
    """The requests of a round."""
    with s3_server() as server, far_away(server.port, 0.0) as proxy:
        os.environ.update(server.environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
        for partitions in sizes:
            requests: list[int] = []
            for number in (1, rounds):  # the difference is what rounds take
                before = proxy.requests
                clock, processor = seconds(partitions, elements, number, root=server.bucket())
                requests.append(proxy.requests - before)
            each = (requests[1] - requests[0]) / (rounds - 1)
            numbers = each, clock * 1e3, processor * 1e3, each / clock
            yield [str(partitions), *(f"{number:.0f}" for number in numbers)]


DISK = ("partitions", "calls a round", *CALLS[:3], "ms", "CPU ms", "calls/s", "MB/s")
BUCKET = ("partitions", "requests a round", "ms", "CPU ms", "requests/s")


def main(partitions: Numbers = [1, 10, 100, 1000], elements: int = 100, rounds: int = 5) -> None:  # noqa: B006
    """Print the tables."""
    sys.addaudithook(count)
    show(DISK, on_disk([*partitions, 10 * partitions[-1]], elements, rounds), "a disk")
    show(DISK, on_disk(partitions[:3], 300_000, rounds), "a disk")
    show(BUCKET, in_a_bucket(partitions[:3], elements, rounds), "a bucket")


if __name__ == "__main__":
    typer.run(main)
