"""The files of examples that all contenders of a row read: `x`, `y`, and the same held out."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from roundweave.storage.errors import DataError
from roundweave.tasks.data.sources.table import find_source
from tests.benchmarks.peers.recipes import CLIENTS, EXAMPLES_OF_CLIENT


def mnist(data: str | None, file: Path) -> None:
    """All of MNIST, flat, with mean 0 and deviation 1. Raises `DataError` where it is not given."""
    if data is None:
        raise DataError("MNIST is not here: give mnist:DIR, or set ROUNDWEAVE_DATA to a folder with mnist/")
    dataset = find_source(data).load()
    pixels, arrays = dataset.train.inputs.float(), {}
    mean, deviation = pixels.mean(), pixels.std()
    for suffix, examples in (("", dataset.train), ("_held_out", dataset.held_out)):
        arrays[f"x{suffix}"] = ((examples.inputs.float() - mean) / deviation).flatten(1).numpy()
        arrays[f"y{suffix}"] = examples.targets.numpy()
    np.savez(file, **arrays)


def few(data: str | None, file: Path) -> None:
    """The first 10,000 training examples of MNIST, and all of its test examples."""
    mnist(data, file)
    arrays = dict(np.load(file))
    np.savez(file, **{name: array[:10_000] for name, array in arrays.items()})


def clients(data: str | None, file: Path) -> None:
    """Noise for many small clients."""
    random, count = np.random.default_rng(0), CLIENTS.partitions * EXAMPLES_OF_CLIENT
    x = random.random((count, CLIENTS.sizes[0]), dtype=np.float32)
    y = random.integers(0, CLIENTS.sizes[-1], count)
    np.savez(file, x=x, y=y, x_held_out=x[:1], y_held_out=y[:1])


def none(data: str | None, file: Path) -> None:
    """No examples."""
