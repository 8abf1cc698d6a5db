"""What a round costs that computes nothing: milliseconds a round with everything stored.

    python -m tests.benchmarks.speed.noop [--elements 100] [--rounds 60] [--window 8]

Not a test: it asserts nothing. It prints medians over the rounds after the first window.
"""

from __future__ import annotations

import statistics

import typer

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from roundweave.tasks.executors.inline import InlineExecutor
from tests.benchmarks.rounds import begun, idle, show, windows


def main(elements: int = 100, rounds: int = 60, window: int = 10) -> None:
    """Print the table."""
    lines = []
    with connect(None, 2) as client:
        graph = GraphExecutor(client)
        for partitions in (2, 10, 100):
            lines.append([str(partitions)])
            for executor, size in ((InlineExecutor(), 1), (graph, 1), (graph, window)):
                with begun(executor, **idle(partitions, rounds, elements)) as ready:
                    spent = statistics.median([*windows(executor, ready, size)][1:])
                lines[-1].append(f"{1e3 * spent:.1f}")
    show(("partitions", "inline", "graph, window 1", f"graph, window {window}"), lines, "ms a round")


if __name__ == "__main__":
    typer.run(main)
