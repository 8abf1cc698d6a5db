"""The recipe of federated averaging on MNIST by FedJAX, in one process; argument: the examples."""

from __future__ import annotations

import sys

import jax

from tests.benchmarks.peers.fedjax.training import accuracy, initial, loss, rounds
from tests.benchmarks.peers.recipes import FEDAVG, load, pace, since_start, tell


def main(file: str) -> None:
    """Tell of the rounds, each with a look at the held-out examples."""
    train, held_out = load(file)
    parts = [train.part(number, FEDAVG.partitions) for number in range(FEDAVG.partitions)]
    trained = rounds(initial(FEDAVG.sizes), jax.jit(jax.grad(loss)), parts, FEDAVG, num_epochs=1)
    ended, reached = [], 0.0
    for _, params in zip(range(FEDAVG.rounds), trained, strict=False):
        reached = float(accuracy(params, held_out.inputs, held_out.targets))
        ended.append(since_start())
    tell(round=pace(ended), first=ended[0], accuracy=reached)


if __name__ == "__main__":
    main(*sys.argv[1:])
