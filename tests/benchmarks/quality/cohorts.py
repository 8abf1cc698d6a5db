"""Rounds to 97 % by the share of clients in a round: McMahan et al. 2017, table 1, for the 2NN.

    python -m tests.benchmarks.quality.cohorts mnist:DIR [--batch 10] [--split iid] [--cohort 0.1]

100 clients of 600 examples each train a network of 784-200-200-10 with rectified units for one local epoch; it is
scored on the 10,000 test examples. The paper chooses the learning rate anew for each cell; here there is one for
each batch size. A cell ends at one and a half times the paper's rounds.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated

import typer

from tests.benchmarks.peers import networks
from tests.benchmarks.quality.runs import curve
from tests.benchmarks.rounds import show

TARGET = 0.97
SIZES = [784, 200, 200, 10]
RATES = {10: 0.1, 600: 0.5}
"""Learning rates by the size of a batch; 600 are all examples of a client."""

PAPER = {
    ("iid", 10): {0.0: 316, 0.1: 87, 0.2: 77, 0.5: 75, 1.0: 70},
    ("iid", 600): {0.0: 1455, 0.1: 1474, 0.2: 1658},
    ("shards:2", 10): {0.0: 3275, 0.1: 664, 0.2: 619, 0.5: 443, 1.0: 380},
    ("shards:2", 600): {0.0: 4278, 0.1: 1796, 0.2: 1528},
}
"""The paper's rounds by split and batch, then by C; at C = 0 one client takes part."""


def rounds_needed(data: str, split: str, batch: int, share: float, most: int) -> tuple[int, float]:
    """The rounds until the target is reached, or `most`, and the accuracy of the last one."""
    network = {"model": f"{networks.__file__}:mlp", "model_options": {"sizes": SIZES}}
    local = {"local_epochs": 1, "batch_size": batch, "lr": RATES[batch]}
    run = {"rounds": most, "target_accuracy": TARGET, "keep": "last:1"}
    dealt = {"data": data, "partitions": 100, "split": split, "cohort": share or 1}
    accuracies = curve(window=50, **dealt, **network, **local, **run)
    return len(accuracies), accuracies[-1]


def main(
    data: str,
    batch: Annotated[list[int] | None, typer.Option()] = None,
    split: Annotated[list[str] | None, typer.Option()] = None,
    cohort: Annotated[list[float] | None, typer.Option()] = None,
) -> None:
    """Print the table, a cell after the other; those of the options alone, if any are given."""

    def rows() -> Iterator[list[str]]:
        for (dealt, size), cells in PAPER.items():
            for share, paper in cells.items():
                if size in (batch or [size]) and dealt in (split or [dealt]) and share in (cohort or [share]):
                    rounds, accuracy = rounds_needed(data, dealt, size, share, round(1.5 * paper))
                    reached = f"{rounds}" if accuracy >= TARGET else f"> {rounds}"
                    yield [dealt, f"{size}", f"{share}", reached, f"{paper}", f"{accuracy:.4f}"]

    show(("split", "B", "C", "rounds", "the paper's", "accuracy"), rows())


if __name__ == "__main__":
    typer.run(main)
