"""Rounds of many small clients by FedJAX, in one process; argument: the examples."""

from __future__ import annotations

import sys
import time

import jax

from tests.benchmarks.peers.fedjax.training import initial, loss, rounds
from tests.benchmarks.peers.recipes import CLIENTS, load, pace, tell


def main(file: str) -> None:
    """Tell of the rounds."""
    train, _ = load(file)
    parts = [train.part(number, CLIENTS.partitions) for number in range(CLIENTS.partitions)]
    trained = rounds(initial(CLIENTS.sizes), jax.jit(jax.grad(loss)), parts, CLIENTS, num_steps=10)
    tell(round=1e3 * pace([time.perf_counter() for _, _ in zip(range(CLIENTS.rounds), trained, strict=False)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
