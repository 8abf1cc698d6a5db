"""How often to average, and whether to deal the examples anew: the README's table of periodic averaging.

    python -m tests.benchmarks.quality.averaging mnist:DIR [--epochs 3]

Every cell trains on the same number of examples, in batches of 32 with lr 0.1, and prints the held-out accuracy.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator

import typer

from tests.benchmarks.quality.runs import curve
from tests.benchmarks.rounds import markdown

BATCH = 32


def accuracy(data: str, networks: int, every: int | None, resplit: bool, epochs: int) -> float:
    """The accuracy after so many epochs, averaging after `every` steps (None: an epoch)."""
    steps = -(-60000 // networks // BATCH)
    rounds_an_epoch = 1 if every is None else round(steps / every)
    local = {"local_epochs": 1} if every is None else {"local_steps": every}
    rounds, resplit_every = epochs * rounds_an_epoch, rounds_an_epoch if resplit else None
    base = {"data": data, "partitions": networks, "batch_size": BATCH, "lr": 0.1}
    return curve(**base, **local, rounds=rounds, evaluate_every=rounds, resplit_every=resplit_every)[-1]


def main(data: str, epochs: int = 3) -> None:
    """Print the table as Markdown."""
    frequencies = {"every 5 steps": 5, "every 50 steps": 50, "every epoch": None}

    def rows() -> Iterator[list[str]]:
        for networks, resplit in itertools.product((2, 4, 10), (False, True)):
            cells = [accuracy(data, networks, every, resplit, epochs) for every in frequencies.values()]
            split = "new each epoch" if resplit else "fixed"
            yield [str(networks), split, *(f"{100 * cell:.2f}" for cell in cells)]

    markdown(("networks", "split", *frequencies), rows())


if __name__ == "__main__":
    typer.run(main)
