"""The recipe of federated averaging on MNIST by Flower's simulation on two cores; argument: the examples."""

from __future__ import annotations

import os
import sys

from flwr.app import ArrayRecord, Context, MetricRecord
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation

from tests.benchmarks.peers.flower import client
from tests.benchmarks.peers.networks import mlp
from tests.benchmarks.peers.recipes import FEDAVG, load, pace, since_start, tell
from tests.benchmarks.peers.torch_training import accuracy, tensors

CORES = 2
BACKEND = {
    "init_args": {"num_cpus": CORES, "include_dashboard": False, "log_to_driver": False},
    "client_resources": {"num_cpus": 1.0, "num_gpus": 0.0},
}


def main(file: str) -> None:
    """Tell of the rounds, each with a look at the held-out examples."""
    os.environ[client.FILE] = file
    held_out, network = tensors(load(file)[1]), mlp(FEDAVG.sizes)
    ended: list[float] = []
    reached: list[float] = []

    def evaluate(round: int, arrays: ArrayRecord) -> MetricRecord:
        network.load_state_dict(arrays.to_torch_state_dict())
        reached.append(accuracy(network, held_out))
        if round > 0:
            ended.append(since_start())
        return MetricRecord({"accuracy": reached[-1]})

    server = ServerApp()

    @server.main()
    def serve(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_train_nodes=FEDAVG.partitions)
        strategy.start(grid, ArrayRecord(network.state_dict()), num_rounds=FEDAVG.rounds, evaluate_fn=evaluate)

    run_simulation(server, client.app, FEDAVG.partitions, backend_config=BACKEND)
    tell(round=pace(ended), first=ended[0], accuracy=reached[-1])


if __name__ == "__main__":
    main(*sys.argv[1:])
