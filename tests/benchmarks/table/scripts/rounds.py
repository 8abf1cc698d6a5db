"""Rounds of an executor, stored; arguments: the examples, which recipe (or numbers of empty partitions), executor,
what is stored.

No Prefect takes part: windows are run as its flow would run them. Runs lie beside the examples, and stay: for
minutes after many files were deleted ext4 takes up to 50 times as long to make new ones.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from roundweave.flows.config.resolving import resolve
from roundweave.flows.config.train import TrainConfig
from roundweave.flows.preparing.job import Prepared, prepared
from roundweave.tasks.executors.base import Executor, open_executor
from tests.benchmarks.peers import networks
from tests.benchmarks.peers.recipes import (
    CLIENTS,
    COHORT,
    ELEMENTS,
    EMPTY_ROUNDS,
    FEDERATED,
    SPLIT,
    SPLIT_STEPS,
    STACKED,
    STEP,
    Recipe,
    tell,
)
from tests.benchmarks.speed import noop
from tests.benchmarks.speed.constant import CONSTANT

WORKERS = 2
UNTIMED = 1
"""Windows: the first has one round, and loads what is needed."""


def trained(recipe: Recipe, **fields: Any) -> dict[str, Any]:
    """The fields of a configuration of the recipe, which is scored at its end alone."""
    return {
        "model": f"{networks.__file__}:mlp",
        "model_options": {"sizes": list(recipe.sizes)},
        "partitions": recipe.partitions,
        "batch_size": recipe.batch,
        "lr": recipe.lr,
        "rounds": recipe.rounds,
        "evaluate_every": recipe.rounds,
        **fields,
    }


def empty(partitions: int) -> dict[str, Any]:
    """The fields of rounds that compute nothing."""
    sizes = {"partitions": partitions, "rounds": EMPTY_ROUNDS, "evaluate_every": EMPTY_ROUNDS, "held_out": 0}
    return {
        **CONSTANT,
        **sizes,
        "algorithm": f"{noop.__file__}:algorithm",
        "model_options": {"elements": ELEMENTS},
    }


FEDERATING = {"algorithm": "fed_avg", "local_epochs": 1, "evaluate_every": 1}

RECIPES = {
    "step": trained(STEP, algorithm="sync_sgd"),
    "split": trained(SPLIT, algorithm="fed_avg", local_steps=SPLIT_STEPS, ranks=WORKERS),
    "clients": trained(CLIENTS, algorithm="fed_avg", local_steps=10),
    **{name: trained(recipe, **FEDERATING) for name, recipe in FEDERATED.items()},
    **{f"{name}-stacked": trained(recipe, **FEDERATING, stacked=50) for name, recipe in FEDERATED.items()},
    "clients-stacked": trained(STACKED, algorithm="fed_avg", local_steps=10, stacked=56),
}


def paces(executor: Executor, run: Prepared) -> Iterator[float]:
    """Seconds a round, of each window."""
    done, seconds, rounds = 0, None, run.job.attempt.rounds
    while done < rounds:
        last, began = min(done + run.window(seconds), rounds), time.perf_counter()
        for commit in executor.run(run.job, done + 1, last):
            seconds = commit.seconds
        yield (time.perf_counter() - began) / (last - done)
        done = last


def milliseconds(executor: Executor, root: Path, placed: dict[str, str], fields: dict[str, Any]) -> float:
    """A round, the median over windows."""
    config = TrainConfig(**fields, **placed, root=root)
    with prepared(resolve(config), executor) as run:
        return 1e3 * statistics.median(list(paces(executor, run))[UNTIMED:])


def main(file: str, recipe: str, executor: str, keep: str) -> None:
    """Tell of the milliseconds a round."""
    root = Path(tempfile.mkdtemp(dir=Path(file).parent))
    with open_executor(executor, workers=WORKERS) as opened:
        measured = partial(milliseconds, opened, root, {"executor": executor, "keep": keep})
        if recipe == "split":
            fields = {**RECIPES[recipe], "data": f"npz:{file}"}
            tell(step=measured(fields) / SPLIT_STEPS)
        elif recipe in RECIPES:
            cohort = {"cohort": COHORT} if recipe.startswith("cohort") else {}
            tell(round=measured({**RECIPES[recipe], **cohort, "data": f"npz:{file}"}))
        else:
            tell(**{number: measured(empty(int(number))) for number in recipe.split(",")})


if __name__ == "__main__":
    main(*sys.argv[1:])
