"""Asynchronous SGD on two workers, beside parameter servers by a Dask actor and torch's RPC: the row ``server``.

Each sends gradients of an mlp with 203,530 parameters of float32 in batches of 32, with one thread a process; the
examples are MNIST's, or without it noise of that shape. The peers keep nothing. The first second of each does not
count.
"""

from __future__ import annotations

import sys
import tempfile
from functools import partial
from pathlib import Path

import numpy as np

import roundweave as rw
from roundweave.tasks.data.sources.table import find_source
from tests.benchmarks.peers.recipes import tell
from tests.benchmarks.peers.server import dask_actor, torch_rpc
from tests.benchmarks.peers.server.learning import BATCH, LR, rate

EXAMPLES = 8000
HELD_OUT = 100
SECONDS = 5.0
UPDATES = 600


def write_examples(data: str | None, file: Path) -> None:
    """The first examples of MNIST, or noise, as arrays that all read."""
    if data is None:
        random = np.random.default_rng(0)
        x = random.random((EXAMPLES, 1, 28, 28), dtype=np.float32)
        y = random.integers(0, 10, EXAMPLES)
    else:
        train = find_source(data).load().train
        x, y = train.inputs[:EXAMPLES].float().numpy().reshape(-1, 1, 28, 28), train.targets[:EXAMPLES].numpy()
    np.savez(file, x=x, y=y, x_held_out=x[:HELD_OUT], y_held_out=y[:HELD_OUT])


def roundweave(file: Path, executor: str, keep: str) -> float:
    """Updates a second with two partitions, stored as `keep` says."""
    fields = {"algorithm": "async_sgd", "lr": LR, "batch_size": BATCH, "data": f"npz:{file}", "partitions": 2}
    fields |= {"model": "mlp", "model_options": {"hidden": 256}, "executor": executor, "keep": keep, "workers": 2}
    with tempfile.TemporaryDirectory() as root:
        history = rw.train(rw.TrainConfig(**fields, rounds=UPDATES, evaluate_every=UPDATES, root=root)).history()
    return rate(history["seconds"].cumsum().tolist()) * history["accepted"].iloc[1:].mean()


def main(file: str, name: str, executor: str = "graph", keep: str = "all") -> None:
    """Tell of the milliseconds an update; arguments: the examples, whose, executor, what is stored."""
    measured = {
        "Dask actor beside a worker": partial(dask_actor.updates_a_second, Path(file), SECONDS),
        "Dask actor, a process of its own": partial(dask_actor.updates_a_second, Path(file), SECONDS, apart=True),
        "torch RPC": partial(torch_rpc.updates_a_second, Path(file), SECONDS),
        "Roundweave": partial(roundweave, Path(file), executor, keep),
    }
    tell(update=1e3 / measured[name]())


if __name__ == "__main__":
    main(*sys.argv[1:])
