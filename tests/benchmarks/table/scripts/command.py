"""The command `roundweave train` as a whole; arguments: the examples, which recipe, executor, what is stored.

Its root lies beside the examples and stays with its runs, as a user's: only the first finds no database.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
import uuid
from pathlib import Path
from typing import Any

from tests.benchmarks.peers import networks
from tests.benchmarks.peers.recipes import ACCURACY, EVALUATED_EVERY, FEDAVG, TARGET, Recipe, pace, tell


def options(recipe: Recipe, **more: Any) -> dict[str, Any]:
    """Options of the command."""
    return {
        "model": f"{networks.__file__}:mlp",
        "model-options": json.dumps({"sizes": recipe.sizes}),
        "partitions": recipe.partitions,
        "batch-size": recipe.batch,
        "lr": recipe.lr,
        "rounds": recipe.rounds,
        **more,
    }


TO_TARGET = {"target-accuracy": TARGET}
SCORED = {"evaluate-every": EVALUATED_EVERY}
APART = {"algorithm": "fed_avg", "local-steps": EVALUATED_EVERY}
RECIPES = {
    "fedavg": options(FEDAVG, **{"algorithm": "fed_avg", "local-epochs": 1}),
    "accuracy": options(ACCURACY, algorithm="sync_sgd", **TO_TARGET, **SCORED),
    "accuracy-apart": options(ACCURACY, **APART, **TO_TARGET),
}


def main(file: str, recipe: str, executor: str, keep: str) -> None:
    """Tell of the command's seconds, and of its rounds by the moments at which they were committed."""
    root, name = Path(file).parent / "runs", f"run-{uuid.uuid4().hex[:8]}"
    where = {"data": f"npz:{file}", "root": root, "name": name, "executor": executor, "workers": 2, "keep": keep}
    pairs = {**RECIPES[recipe], **where}.items()
    command = [str(Path(sys.executable).with_name("roundweave")), "train", "--json"]
    began = time.time()
    done = subprocess.run(
        [*command, *(f"--{key}={value}" for key, value in pairs)], stdout=subprocess.PIPE, text=True, check=False
    )
    ended = time.time()
    told = json.loads(done.stdout.splitlines()[-1])
    if done.returncode:
        sys.exit(told["error"])
    run = root / f"{name}.zarr"
    moments = [moment - began for moment in committed(run)] if recipe.startswith("fedavg") else []
    rounds = {"first": moments[0], "round": pace(moments)} if moments else {}
    tell(exit=ended - began, accuracy=told["accuracy"], **rounds)


def committed(run: Path) -> list[float]:
    """When each round was, in seconds of `time.time`."""
    records = {int(file.stem): file for file in (run / "commits").glob("[0-9]*.json")}
    return [records[round].stat().st_mtime for round in sorted(records) if round > 0]


if __name__ == "__main__":
    main(*sys.argv[1:])
