"""What algorithms for unlike partitions gain where each has two labels: the results' table of shards.

    python -m tests.benchmarks.quality.shards mnist:DIR [--rounds 20] [--seeds 5] [--split dirichlet:0.1]

Ten partitions, each two shards of MNIST sorted by label (McMahan et al. 2017, section 3), train an mlp for one
local epoch a round, in batches of 32 with one local lr for all. It takes 13 minutes on one core; `--choose`
prints instead, on a seed of its own, how the local lr and what an algorithm adds to it were chosen.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator
from typing import Annotated, Any

import torch
import typer

from tests.benchmarks.quality.runs import Curve, curve
from tests.benchmarks.rounds import show, spread

TARGET = 0.9
LEARNING_RATE = 0.1
SPLIT = "shards:2"
RUNS: dict[str, dict[str, Any]] = {
    "fed_avg": {"algorithm": "fed_avg"},
    "fed_prox": {"algorithm": "fed_prox", "mu": 0.01},
    "scaffold": {"algorithm": "scaffold"},
    "fed_adam": {"algorithm": "fed_adam", "outer_lr": 0.01},
    "matched": {"algorithm": "matched"},
    "regmean": {"algorithm": "fed_avg", "reduce": "regmean"},
    "fed_avg, iid": {"algorithm": "fed_avg", "split": "iid"},
}
CHOSEN_ON = 100
CHOICES: list[dict[str, Any]] = [
    *({"algorithm": "fed_avg", "lr": lr} for lr in (0.03, 0.1, 0.3)),
    *({"algorithm": "fed_prox", "mu": mu} for mu in (0.01, 0.1, 1.0)),
    *({"algorithm": "fed_adam", "outer_lr": rate} for rate in (0.001, 0.003, 0.01)),
]

COMMON = {"split": SPLIT, "partitions": 10, "lr": LEARNING_RATE, "batch_size": 32}
COMMON |= {"model_options": {"hidden": 256}}


HEADS = ("run", "after 1", "after 5", "accuracy %", "above the first", "lowest of last 5")
HEADS += (f"rounds to {100 * TARGET:.0f} %",)


def rounds_needed(curves: list[Curve]) -> str:
    """The mean number of rounds to the target of the runs that reach it, and how many do."""
    needed = [next((round for round, value in enumerate(c, 1) if value >= TARGET), None) for c in curves]
    reached = [rounds for rounds in needed if rounds]
    share = f"{len(reached)} of {len(curves)}"
    return f"{statistics.mean(reached):.1f} ({share})" if reached else share


def cells(curves: list[Curve], beside: list[Curve]) -> list[str]:
    """Accuracy after one round, five, all; how far above others by seed; the lowest of five; rounds needed."""
    last = [100 * c[-1] for c in curves]
    above = [value - 100 * c[-1] for value, c in zip(last, beside, strict=True)]
    lowest = statistics.mean(100 * min(c[-5:]) for c in curves)
    early = [f"{statistics.mean(100 * c[round - 1] for c in curves):.2f}" for round in (1, 5)]
    return [*early, spread(last), spread(above), f"{lowest:.2f}", rounds_needed(curves)]


def main(
    data: str,
    rounds: int = 20,
    seeds: int = 5,
    choose: bool = False,
    split: Annotated[str, typer.Option(help="such as dirichlet:0.1")] = SPLIT,
) -> None:
    """Print the table."""
    torch.set_num_threads(1)
    runs = {" ".join(map(str, fields.values())): fields for fields in CHOICES} if choose else RUNS
    chosen, first = [CHOSEN_ON] if choose else range(seeds), list[Curve]()

    def rows() -> Iterator[list[str]]:
        for name, fields in runs.items():
            own = COMMON | {"split": split} | fields
            curves = [curve(**own, data=data, rounds=rounds, seed=seed) for seed in chosen]
            first.extend(curves if not first else [])
            yield [name, *cells(curves, first)]

    show(HEADS, rows())


if __name__ == "__main__":
    typer.run(main)
