"""What a bucket far away costs: requests and milliseconds a round, and what opening a long run takes.

    python -m tests.benchmarks.speed.objects [--delay 0.03] [--rounds 21] [--elements 100000]

Rounds of four partitions that take a second, on a disk and in a bucket: a server of S3 (moto) behind a proxy that
makes each request wait, both processes of their own. Not a test: it asserts nothing.
"""

from __future__ import annotations

import os
import tempfile

import typer

from roundweave.flows.stored import Run
from roundweave.tasks.executors.base import Executor
from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from roundweave.tasks.rounds.job import window_size
from tests.benchmarks.rounds import begun, idle, run, seconds, show, windows
from tests.storage.places.far_away import far_away
from tests.storage.places.s3_server import s3_server

SECONDS = {"inline": 0.25, "graph": 0.5}
"""What a map takes: four of them are a round of a second in one process, and on two workers."""


def milliseconds(executor: Executor, name: str, root: str, rounds: int, elements: int) -> float:
    """A round's: the time of all rounds after the first window."""
    fields = idle(4, rounds, elements, taking=SECONDS[name], name=name, root=root)
    with begun(executor, **fields) as ready:
        run(executor, ready, 1, 1)
        size = window_size(None, 1.0, long=ready.store.tensors.slow)
        return 1e3 * seconds(lambda: [*windows(executor, ready, size, done=1)]) / (rounds - 1)


def main(delay: float = 0.03, rounds: int = 21, elements: int = 100_000, long: int = 1000) -> None:
    """Print the tables."""
    lines = []
    with tempfile.TemporaryDirectory() as folder, s3_server() as server, far_away(server.port, delay) as proxy:
        os.environ.update(server.environment | {"AWS_ENDPOINT_URL": f"http://127.0.0.1:{proxy.port}"})
        bucket = server.bucket()
        with connect(None, 2) as client:
            for name, executor in (("inline", InlineExecutor()), ("graph", GraphExecutor(client))):
                disk, far = (milliseconds(executor, name, root, rounds, elements) for root in (folder, bucket))
                lines.append((name, f"{disk:.0f}", f"{far:.0f}", f"{far / disk:.3f}"))
        show(("executor", "disk", f"bucket, {delay * 1e3:.0f} ms a request", "ratio"), lines, "ms a round")
        proxy.seconds = 0.0  # the long run is made quickly
        with begun(InlineExecutor(), **idle(4, long, 10, root=bucket, name="long")) as ready:
            before = proxy.requests
            run(InlineExecutor(), ready, 1, long)
            a_round = (proxy.requests - before) // long
        before = proxy.requests
        Run(f"{bucket}/long.zarr").history()
        opening = proxy.requests - before
        proxy.seconds = delay
        assert proxy.requests
        stored = Run(f"{bucket}/long.zarr")
        spent = 1e3 * seconds(lambda: stored.refresh().history())
    print(f"a round of four partitions: {a_round} requests; it has no scores and no metrics")
    print(f"opening {long} rounds and their history: {opening} requests, {spent:.0f} ms")


if __name__ == "__main__":
    typer.run(main)
