"""Does matching hidden units before the mean save rounds: the README's table of matched rounds.

    python -m tests.benchmarks.quality.matched_rounds mnist:DIR [--rounds 15] [--seeds 3] [--match weights]

Ten partitions train an mlp apart for a number of epochs a round. A row shows, seed by seed, the rounds until the
held-out accuracy is 97 % (or the best within the rounds it was given), what the first round reaches (mean over
seeds), and the rounds that matching saves: 0 where it does not pay.
"""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Iterator

import typer
from distributed import Client

from roundweave.tasks.executors.clusters.connecting import connect
from roundweave.tasks.executors.graph import GraphExecutor
from tests.benchmarks.quality.runs import Curve, curve
from tests.benchmarks.rounds import markdown

TARGET = 0.97
PARTITIONS = 10
EPOCHS = {1: 1.0, 5: 0.8, 20: 0.4}
"""Local epochs, and the share of the rounds that they are given: a round of 20 takes twenty times as long."""

FIELDS = {"partitions": PARTITIONS, "batch_size": 32, "lr": 0.1}


def rounds_needed(curve: Curve) -> str:
    """Rounds to the target."""
    best = max(curve)
    return f"{len(curve)}" if best >= TARGET else f"> {len(curve)} (best {100 * best:.2f})"


def cells(curves: list[Curve]) -> list[str]:
    """Rounds to the target by seed, and what the first one reached."""
    return [", ".join(map(rounds_needed, curves)), f"{100 * statistics.mean(c[0] for c in curves):.2f}"]


def saved(plain: list[Curve], matched: list[Curve]) -> str:
    """The rounds that matching saves on average, where both arrive."""
    pairs = [len(a) - len(b) for a, b in zip(plain, matched, strict=True) if min(max(a), max(b)) >= TARGET]
    return f"{statistics.mean(pairs):.1f}" if pairs else "not both arrive"


def main(data: str, rounds: int = 15, seeds: int = 1, match: str = "weights", workers: int = 2) -> None:
    """Print the table as Markdown."""
    heads = ["begin from", "local epochs"]
    heads += ["mean: rounds", "first round", "matched: rounds", "first round", "saves"]
    begins = {"shared": "one initialisation", "per-partition": "their own"}

    def rows(client: Client) -> Iterator[list[str]]:
        for init, epochs in itertools.product(begins, EPOCHS):
            fields = FIELDS | {"data": data, "init": init, "local_epochs": epochs, "target_accuracy": TARGET}
            fields["rounds"] = max(1, round(EPOCHS[epochs] * rounds))
            # An executor for each, since one keeps the examples of all that it ran.
            plain, matched = (
                [curve(GraphExecutor(client), **fields, **more, seed=seed) for seed in range(seeds)]
                for more in ({}, {"algorithm": "matched", "match": match})
            )
            yield [begins[init], str(epochs), *cells(plain), *cells(matched), saved(plain, matched)]

    with connect(None, workers) as client:
        markdown(heads, rows(client))


if __name__ == "__main__":
    typer.run(main)
