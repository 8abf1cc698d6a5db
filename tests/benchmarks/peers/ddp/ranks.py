"""Two processes of torch's DistributedDataParallel with gloo, one thread each."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Callable

HERE = "127.0.0.1"
RANKS = 2


def run(module: str, work: Callable[..., None], arguments: list[str]) -> None:
    """In a rank, its work; else start all ranks of this module and wait for them."""
    if "RANK" in os.environ:
        return in_group(work, arguments)
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
    shared = {"MASTER_ADDR": HERE, "MASTER_PORT": str(port), "WORLD_SIZE": str(RANKS), "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", module, *arguments]
    ranks = [
        subprocess.Popen(command, env={**os.environ, **shared, "GLOO_SOCKET_IFNAME": "lo", "RANK": str(rank)})
        for rank in range(RANKS)
    ]
    if failed := [code for code in [rank.wait() for rank in ranks] if code]:
        sys.exit(failed[0])
    return None


def in_group(work: Callable[..., None], arguments: list[str]) -> None:
    """Call it as a member of the process group."""
    import torch  # not before: what only starts the ranks does without

    torch.set_num_threads(1)
    torch.distributed.init_process_group("gloo")
    try:
        work(*arguments)
    finally:
        torch.distributed.destroy_process_group()
