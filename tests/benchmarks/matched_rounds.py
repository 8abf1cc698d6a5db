"""Does matching hidden units before the mean save rounds: the README's table of matched rounds.

    python tests/benchmarks/matched_rounds.py mnist:DIR [--rounds 15] [--match weights]

Ten partitions train an mlp apart for a number of epochs a round. A row shows the rounds until the held-out accuracy
is 97 %, or the best within the rounds it was given, what the first round reaches, and whether matching pays.
"""

from __future__ import annotations

import tempfile
from typing import Annotated, Any

import typer

from flows.config import TrainConfig
from flows.preparing import prepared
from tasks.executors.base import Executor
from tasks.executors.choice import open_executor

TARGET = 0.97
PARTITIONS = 10
EPOCHS = {1: 1.0, 5: 0.8, 20: 0.4}
"""Local epochs, and the share of the rounds that they are given: a round of 20 takes twenty times as long."""


def curve(executor: Executor, fields: dict[str, Any]) -> list[float]:
    """Held-out accuracies after each round, until the target or the last."""
    with tempfile.TemporaryDirectory() as root:
        config = TrainConfig(**fields, root=root, partitions=PARTITIONS, batch_size=32, lr=0.1)
        found: list[float] = []
        with prepared(config, executor) as ready:
            for number in range(1, config.rounds + 1):
                (commit,) = executor.run(ready.job, number, number)
                assert commit.score is not None
                assert commit.score.accuracy is not None
                found.append(commit.score.accuracy)
                if commit.stop:
                    break
    return found


def cell(accuracies: list[float]) -> str:
    """Rounds to the target, and what the first one reached."""
    reached = accuracies[-1] >= TARGET
    rounds = f"{len(accuracies)}" if reached else f"> {len(accuracies)} (best {100 * max(accuracies):.2f})"
    return f"{rounds} | {100 * accuracies[0]:.2f}"


def verdict(plain: list[float], matched: list[float]) -> str:
    """Whether matching paid: fewer rounds, or where neither arrived a better best."""
    arrived = [accuracies[-1] >= TARGET for accuracies in (plain, matched)]
    if all(arrived):
        saved = len(plain) - len(matched)
        return f"saves {saved}" if saved > 0 else "no" if saved == 0 else f"no, costs {-saved}"
    if any(arrived):
        return "yes" if arrived[1] else "no"
    return f"neither arrives, {100 * (max(matched) - max(plain)):+.2f} points"


def main(
    data: Annotated[str, typer.Argument()],
    rounds: int = 15,
    match: str = "weights",
    seed: int = 0,
    workers: int = 2,
) -> None:
    """Print the table as Markdown."""
    print(
        "| begin from | local epochs | mean: rounds to 97 % | first round | matched: rounds | first round | pays |"
    )
    print("|" + " --- |" * 7, flush=True)
    with open_executor("graph", None, workers) as executor:
        for epochs, share in EPOCHS.items():
            for init in ("shared", "per-partition"):
                fields = {"data": data, "init": init, "local_epochs": epochs, "seed": seed}
                fields |= {"rounds": max(1, round(share * rounds)), "target_accuracy": TARGET}
                plain = curve(executor, fields)
                matched = curve(executor, {**fields, "algorithm": "matched", "match": match})
                begin = "one initialisation" if init == "shared" else "their own"
                row = [begin, str(epochs), cell(plain), cell(matched), verdict(plain, matched)]
                print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    typer.run(main)
