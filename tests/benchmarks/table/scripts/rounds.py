"""Rounds of an executor, stored; arguments: the examples, which recipe (or numbers of empty partitions), executor,
what is stored.

No Prefect takes part: windows are run as its flow would run them. Runs lie beside the examples, and stay: for
minutes after many files were deleted ext4 takes up to 50 times as long to make new ones.
"""

from __future__ import annotations

import statistics
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

from roundweave.tasks.executors.base import Executor, open_executor
from tests.benchmarks.peers import networks, recipes
from tests.benchmarks.rounds import begun, idle, windows

WORKERS = 2
UNTIMED = 1
"""Windows: the first has one round, and loads what is needed."""


def trained(recipe: recipes.Recipe, **fields: Any) -> dict[str, Any]:
    """The fields of a configuration of the recipe, which is scored at its end alone."""
    return {
        "model": f"{networks.__file__}:mlp",
        "model_options": {"sizes": list(recipe.sizes)},
        "partitions": recipe.partitions,
        "batch_size": recipe.batch,
        "lr": recipe.lr,
        "rounds": recipe.rounds,
        "evaluate_every": recipe.rounds,
        "cohort": recipe.cohort,
        **fields,
    }


FEDERATING = {"algorithm": "fed_avg", "local_epochs": 1, "evaluate_every": 1}

RECIPES = {
    "step": trained(recipes.STEP, algorithm="sync_sgd"),
    "split": trained(recipes.SPLIT, algorithm="fed_avg", local_steps=recipes.SPLIT_STEPS, ranks=WORKERS),
    "clients": trained(recipes.CLIENTS, algorithm="fed_avg", local_steps=10),
    **{name: trained(recipe, **FEDERATING) for name, recipe in recipes.FEDERATED.items()},
    **{f"{name}-stacked": trained(recipe, **FEDERATING, stacked=50) for name, recipe in recipes.FEDERATED.items()},
    "clients-stacked": trained(recipes.STACKED, algorithm="fed_avg", local_steps=10, stacked=56),
}


def milliseconds(executor: Executor, placed: dict[str, Any], fields: dict[str, Any]) -> float:
    """A round, the median over windows."""
    with begun(executor, **fields, **placed) as ready:
        return 1e3 * statistics.median([*windows(executor, ready)][UNTIMED:])


def main(file: str, recipe: str, executor: str, keep: str) -> None:
    """Tell of the milliseconds a round."""
    root = Path(tempfile.mkdtemp(dir=Path(file).parent))
    with open_executor(executor, workers=WORKERS) as opened:
        measured = partial(milliseconds, opened, {"executor": executor, "keep": keep, "root": root})
        if recipe == "split":
            recipes.tell(step=measured({**RECIPES[recipe], "data": f"npz:{file}"}) / recipes.SPLIT_STEPS)
        elif recipe in RECIPES:
            recipes.tell(round=measured({**RECIPES[recipe], "data": f"npz:{file}"}))
        else:
            sizes = recipes.EMPTY_ROUNDS, recipes.ELEMENTS
            empty = {n: idle(int(n), *sizes, evaluate_every=recipes.EMPTY_ROUNDS) for n in recipe.split(",")}
            recipes.tell(**{number: measured(fields) for number, fields in empty.items()})


if __name__ == "__main__":
    main(*sys.argv[1:])
