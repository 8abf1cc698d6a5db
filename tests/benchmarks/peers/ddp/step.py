"""Steps of DistributedDataParallel; argument: the examples."""

from __future__ import annotations

import sys
import time

from tests.benchmarks.peers.ddp import ranks
from tests.benchmarks.peers.recipes import STEP, load, pace, tell

CHUNK = 50
"""Steps that are timed together."""


def work(file: str) -> None:
    """Tell of the milliseconds a step, as the first rank saw them."""
    import torch
    from torch.nn.parallel import DistributedDataParallel

    from tests.benchmarks.peers.networks import mlp
    from tests.benchmarks.peers.torch_training import batches, step, tensors

    rank = torch.distributed.get_rank()
    network = DistributedDataParallel(mlp(STEP.sizes))
    optimizer = torch.optim.SGD(network.parameters(), lr=STEP.lr)
    moments = []
    drawn = batches(tensors(load(file)[0].part(rank, ranks.RANKS)), STEP.batch)
    for _, batch in zip(range(STEP.rounds), drawn, strict=False):
        step(network, optimizer, batch)
        moments.append(time.perf_counter())
    if rank == 0:
        tell(round=1e3 * pace(moments, CHUNK))


if __name__ == "__main__":
    ranks.run("tests.benchmarks.peers.ddp.step", work, sys.argv[1:])
