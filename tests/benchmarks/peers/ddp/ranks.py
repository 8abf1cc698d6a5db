"""Two processes of torch with gloo, one thread each, that train a network; arguments: the examples, and what.

``step`` and ``accuracy`` are of DistributedDataParallel. With ``whole`` each rank trains all of a wide network,
with ``tensor-parallel`` its share of it.
"""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

from tests.benchmarks.peers.recipes import ACCURACY, EVALUATED_EVERY, SPLIT, STEP, TARGET, load, pace, tell

HERE = "127.0.0.1"
RANKS = 2
KINDS = {"step": (STEP, STEP.rounds, 50), "accuracy": (ACCURACY, ACCURACY.rounds, 1)}
KINDS |= dict.fromkeys(("whole", "tensor-parallel"), (SPLIT, 60, 1))
"""By what is trained: the recipe, the most steps, and how many steps are timed together."""


def start(arguments: list[str]) -> None:
    """Start all ranks, and wait for them."""
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
    shared = {"MASTER_ADDR": HERE, "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "tests.benchmarks.peers.ddp.ranks", *arguments]
    environment = {**os.environ, **shared, "GLOO_SOCKET_IFNAME": "lo"}
    ranks = [subprocess.Popen(command, env=environment | {"RANK": str(rank)}) for rank in range(RANKS)]
    if failed := [code for code in [rank.wait() for rank in ranks] if code]:
        sys.exit(failed[0])


def work(file: str, what: str) -> None:
    """Of a rank: train, and tell of the steps as the first rank saw them."""
    import torch  # not before: what only starts the ranks does without
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
    from torch.nn.parallel import DistributedDataParallel

    from tests.benchmarks.peers.networks import mlp
    from tests.benchmarks.peers.torch_training import accuracy, batches, step, tensors

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    rank, (recipe, most, together) = torch.distributed.get_rank(), KINDS[what]
    train, held_out = load(file)
    if recipe is SPLIT:
        torch.manual_seed(0)  # both have one network, and the same batches
        network = mlp(recipe.sizes)
        if what == "tensor-parallel":
            mesh = init_device_mesh("cpu", (RANKS,))
            parallelize_module(network, mesh, {"1": ColwiseParallel(), "3": RowwiseParallel()})
    else:
        network, train = DistributedDataParallel(mlp(recipe.sizes)), train.part(rank, RANKS)
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.lr)
    moments, reached = [], torch.zeros(1)
    for _, batch in zip(range(most), batches(tensors(train), recipe.batch), strict=False):
        step(network, optimizer, batch)
        moments.append(time.perf_counter())
        if what == "accuracy" and len(moments) % EVALUATED_EVERY == 0:
            if rank == 0:  # it looks at the held-out examples, and all end together
                reached.fill_(accuracy(network.module, tensors(held_out)))
            torch.distributed.broadcast(reached, 0)
            if reached.item() >= TARGET:
                break
    if rank == 0:
        unit = "step" if recipe is SPLIT else "round"
        tell(**{unit: 1e3 * pace(moments, together), "steps": len(moments), "accuracy": reached.item()})
    torch.distributed.destroy_process_group()


if __name__ == "__main__":
    (work if "RANK" in os.environ else lambda *arguments: start([*arguments]))(*sys.argv[1:])
