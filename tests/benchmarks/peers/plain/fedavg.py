"""The recipe of federated averaging on MNIST by a loop in one process of one thread; argument: the examples."""

from __future__ import annotations

import sys

import torch

from tests.benchmarks.peers.plain.averaging import rounds
from tests.benchmarks.peers.recipes import FEDAVG, load, pace, since_start, tell
from tests.benchmarks.peers.torch_training import accuracy, tensors


def main(file: str) -> None:
    """Tell of the rounds, each with a look at the held-out examples."""
    torch.set_num_threads(1)  # for batches this small more are slower
    train, held_out = load(file)
    parts = [tensors(train.part(number, FEDAVG.partitions)) for number in range(FEDAVG.partitions)]
    ended, reached = [], 0.0
    for _, network in zip(range(FEDAVG.rounds), rounds(FEDAVG, parts), strict=False):
        reached = accuracy(network, tensors(held_out))
        ended.append(since_start())
    tell(round=pace(ended), first=ended[0], accuracy=reached)


if __name__ == "__main__":
    main(*sys.argv[1:])
