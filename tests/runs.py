"""Runs that tests look at: each is trained once a session, on the first demand, and copied for a test that asks.

A test that reads, shows, verifies, exports, prunes, replays or merges a run takes one of these by the fixture
`stored`; one that is about training trains its own. A run that lacks what a test must have gets a row here.
"""

from __future__ import annotations

import fcntl
import shutil
from functools import partial
from pathlib import Path
from typing import Any

from roundweave.flows.stored import Run, open_run
from tests.counting import counting
from tests.training import trained

SMALL = {"model": "mlp", "model_options": {"hidden": 6}, "partitions": 3, "rounds": 3, "held_out": 0.5}
STEPS = {"local_steps": 2, "batch_size": 8}
SHARDS = {"model": "logistic", "partitions": 4, "rounds": 3, "split": "shards:2", "local_steps": 2}

RUNS: dict[str, dict[str, Any]] = {
    "plain": SMALL | STEPS,
    "momentum": SMALL | STEPS | {"outer_momentum": 0.5, "split": "dirichlet:0.3", "resplit_every": 2},
    "scaffold": SMALL | STEPS | {"algorithm": "scaffold"},
    "adam": SMALL | STEPS | {"algorithm": "fed_adam", "evaluate_every": 2},
    "matched": SMALL | STEPS | {"algorithm": "matched"},
    "cohort": SMALL | STEPS | {"partitions": 4, "cohort": 2, "optimizer": "AdamW", "optimizer_state": "carried"},
    "stacked": SMALL | STEPS | {"partitions": 4, "stacked": 2},
    "compressed": SMALL | STEPS | {"compress": "int8"},
    "neighbours": SHARDS | {"algorithm": "d_psgd", "topology": "ring"},
    "scored": SHARDS | {"score_partitions": 0.2},
    "server": SHARDS | {"algorithm": "fed_buff", "buffer": 2, "rounds": 8, "evaluate_every": 4},
    "recomputed": SMALL | STEPS | {"algorithm": "scaffold", "rounds": 5, "keep": "recompute:2"},
    "states": SMALL | STEPS | {"keep": "states"},
    "four": {"model": "logistic", "partitions": 2, "local_steps": 1, "rounds": 4},
    "stale": {"algorithm": "async_sgd", "model": "logistic", "rounds": 24, "evaluate_every": 12}
    | {"max_staleness": 3, "speeds": "1,1,1,0.2"},
    "counting": {"partitions": 3, "rounds": 3},
}
"""The configuration of each by its name; it says what the run has that others lack.

`counting` has user's code, buffers, frozen and tied tensors, extras, and updates that were refused.
"""


def written(folder: Path, source: str) -> str:
    """A file of user's code in a folder."""
    (folder / "mine.py").write_text(source)
    return str(folder / "mine.py")


def train_once(folder: Path, name: str) -> Path:
    """The store of a run of the table, in a folder that all processes of a session share."""
    folder.mkdir(exist_ok=True)
    path = folder / f"{name}.zarr"
    with (folder / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            own = counting(partial(written, folder)) if name == "counting" else {}
            trained(folder / "being trained", **RUNS[name] | own, name=name).path.rename(path)
    return path


def copied(folder: Path, name: str, root: Path) -> Run:
    """A run of the table as a test's own, under its root."""
    return open_run(shutil.copytree(train_once(folder, name), root / f"{name}.zarr"))
