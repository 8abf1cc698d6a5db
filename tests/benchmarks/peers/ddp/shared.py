"""Steps of a wide network on two ranks; arguments: the examples, how (whole, tensor-parallel)."""

from __future__ import annotations

import sys
import time

from tests.benchmarks.peers.ddp import ranks
from tests.benchmarks.peers.recipes import SPLIT, load, pace, tell

STEPS = 60


def work(file: str, how: str) -> None:
    """Tell of the milliseconds a step, as the first rank saw them: each has all of the network, or a share."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

    from tests.benchmarks.peers.networks import mlp
    from tests.benchmarks.peers.torch_training import batches, step, tensors

    torch.manual_seed(0)
    network = mlp(SPLIT.sizes)
    if how == "tensor-parallel":
        mesh = init_device_mesh("cpu", (ranks.RANKS,))
        parallelize_module(network, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    optimizer = torch.optim.SGD(network.parameters(), lr=SPLIT.lr)
    moments = []
    for _, batch in zip(range(STEPS), batches(tensors(load(file)[0]), SPLIT.batch), strict=False):
        step(network, optimizer, batch)
        moments.append(time.perf_counter())
    if torch.distributed.get_rank() == 0:
        tell(step=1e3 * pace(moments))


if __name__ == "__main__":
    ranks.run("tests.benchmarks.peers.ddp.shared", work, sys.argv[1:])
