"""A parameter server as a Dask actor: two long tasks pull, compute and push until the server has enough."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import dask
import torch
from distributed import Client, LocalCluster, wait

from roundweave.tasks.executors.clusters.fork_server import WORKER_ENVIRONMENT
from tests.benchmarks.peers.server.learning import Learner, Server, initial, rate


def work(server: Any, file: Path, worker: int) -> None:
    """Until the server has enough."""
    learner, more = Learner(file, worker), True
    while more:
        vector = torch.tensor(server.pull().result())
        more = server.push(learner.gradient(vector).numpy()).result()


def updates_a_second(file: Path, seconds: float, apart: bool = False) -> float:
    """With the actor on one of the two workers that compute, or `apart` on a third process."""
    options = {"n_workers": 2 + apart, "threads_per_worker": 1, "dashboard_address": "127.0.0.1:0"}
    with (
        dask.config.set({"distributed.nanny.pre-spawn-environ": WORKER_ENVIRONMENT}),
        LocalCluster(**options, memory_limit=0) as cluster,
        Client(cluster) as client,
    ):
        home, *others = sorted(client.nthreads())
        computing = others if apart else [home, *others]
        server = client.submit(Server, initial().numpy(), seconds, actor=True, workers=[home]).result()
        tasks = [
            client.submit(work, server, file, number, workers=[worker], pure=False)
            for number, worker in enumerate(computing)
        ]
        wait(tasks)
        for task in tasks:
            task.result()
        return rate(server.taken().result())
