"""What Flower's clients do, in a module of its own: its workers import it once, and keep the examples."""

from __future__ import annotations

import functools
import os

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp

from tests.benchmarks.peers.networks import mlp
from tests.benchmarks.peers.recipes import FEDAVG, load
from tests.benchmarks.peers.torch_training import Pair, tensors, train

FILE = "BENCHMARK_EXAMPLES"
"""The environment variable with the file of the examples."""

app = ClientApp()


@functools.cache
def examples(partition: int) -> Pair:
    """Those of a client."""
    return tensors(load(os.environ[FILE])[0].part(partition, FEDAVG.partitions))


@app.train()
def train_client(message: Message, context: Context) -> Message:
    """One local epoch from the server's parameters."""
    torch.set_num_threads(1)
    network, mine = mlp(FEDAVG.sizes), examples(int(context.node_config["partition-id"]))
    network.load_state_dict(message.content["arrays"].to_torch_state_dict())
    train(network, mine, FEDAVG)
    arrays, metrics = ArrayRecord(network.state_dict()), MetricRecord({"num-examples": len(mine[1])})
    return Message(content=RecordDict({"arrays": arrays, "metrics": metrics}), reply_to=message)
