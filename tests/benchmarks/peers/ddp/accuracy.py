"""DistributedDataParallel until the target is reached; argument: the examples."""

from __future__ import annotations

import itertools
import sys

from tests.benchmarks.peers.ddp import ranks
from tests.benchmarks.peers.recipes import ACCURACY, EVALUATED_EVERY, TARGET, load, tell


def work(file: str) -> None:
    """Tell of the steps; the first rank looks at the held-out examples, and all end together."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from tests.benchmarks.peers.networks import mlp
    from tests.benchmarks.peers.torch_training import accuracy, batches, step, tensors

    rank = torch.distributed.get_rank()
    train, held_out = load(file)
    network = DistributedDataParallel(mlp(ACCURACY.sizes))
    optimizer = torch.optim.SGD(network.parameters(), lr=ACCURACY.lr)
    reached = torch.zeros(1)
    drawn = batches(tensors(train.part(rank, ranks.RANKS)), ACCURACY.batch)
    for number, batch in zip(itertools.count(1), drawn, strict=False):
        step(network, optimizer, batch)
        if number % EVALUATED_EVERY == 0:
            if rank == 0:
                reached.fill_(accuracy(network.module, tensors(held_out)))
            torch.distributed.broadcast(reached, 0)
            if reached.item() >= TARGET:
                break
    if rank == 0:
        tell(steps=number, accuracy=reached.item())


if __name__ == "__main__":
    ranks.run("tests.benchmarks.peers.ddp.accuracy", work, sys.argv[1:])
