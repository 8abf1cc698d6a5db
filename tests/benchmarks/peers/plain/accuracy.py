"""One process with all cores trains until the target is reached; argument: the examples."""

from __future__ import annotations

import itertools
import sys

import torch

from tests.benchmarks.peers.networks import mlp
from tests.benchmarks.peers.recipes import ACCURACY, EVALUATED_EVERY, TARGET, load, tell
from tests.benchmarks.peers.torch_training import accuracy, batches, step, tensors


def main(file: str) -> None:
    """Tell of the steps."""
    train, held_out = map(tensors, load(file))
    network = mlp(ACCURACY.sizes)
    optimizer = torch.optim.SGD(network.parameters(), lr=ACCURACY.lr)
    for number, batch in zip(itertools.count(1), batches(train, ACCURACY.batch), strict=False):
        step(network, optimizer, batch)
        if number % EVALUATED_EVERY == 0 and (reached := accuracy(network, held_out)) >= TARGET:
            return tell(steps=number, accuracy=reached)
    return None


if __name__ == "__main__":
    main(*sys.argv[1:])
