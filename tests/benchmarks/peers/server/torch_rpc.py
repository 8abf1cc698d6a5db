"""A parameter server by torch.distributed.rpc: a process of its own that two trainers call and wait for."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any
from unittest import mock

import torch
import torch.multiprocessing as processes
from torch.distributed import rpc

from roundweave.tasks.executors.clusters.connecting import HERE
from roundweave.tasks.executors.clusters.fork_server import WORKER_ENVIRONMENT
from tests.benchmarks.peers.server.learning import Learner, Server, initial, rate

NAMES = ("server", "trainer-0", "trainer-1")
ENVIRONMENT = {**WORKER_ENVIRONMENT, "TP_SOCKET_IFNAME": "lo", "PYTHONWARNINGS": "ignore"}
servers: list[Server] = []
"""In the server's process, the server."""


def pull() -> torch.Tensor:
    """In the server's process: the newest parameters."""
    return servers[0].pull()


def push(gradient: torch.Tensor) -> bool:
    """In the server's process: take a step."""
    return servers[0].push(gradient)


def train(file: Path, worker: int) -> None:
    """Until the server has enough."""
    learner, more = Learner(file, worker), True
    while more:
        vector = rpc.rpc_sync("server", pull)
        more = rpc.rpc_sync("server", push, (learner.gradient(vector),))


def process(rank: int, port: int, file: Path, seconds: float, results: Any) -> None:
    """One of the three processes."""
    torch.set_num_threads(1)
    if rank == 0:
        servers.append(Server(initial(), seconds))
    options = rpc.TensorPipeRpcBackendOptions(init_method=f"tcp://{HERE}:{port}")
    rpc.init_rpc(NAMES[rank], rank=rank, world_size=len(NAMES), rpc_backend_options=options)
    if rank > 0:
        train(file, rank - 1)
    rpc.shutdown()  # waits for all
    if rank == 0:
        results.put(rate(servers[0].taken()))


def updates_a_second(file: Path, seconds: float) -> float:
    """With TensorPipe on this machine."""
    with socket.create_server((HERE, 0)) as listener:
        port = listener.getsockname()[1]
    results: Any = processes.get_context("spawn").SimpleQueue()
    with mock.patch.dict(os.environ, ENVIRONMENT):
        processes.spawn(process, (port, file, seconds, results), nprocs=len(NAMES))
    return results.get()
