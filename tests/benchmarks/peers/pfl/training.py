"""What each of pfl's processes does, one thread of torch in it; arguments: the examples, which recipe.

Clients take part in turn, as pfl recommends, and keep the order of their examples.
"""

from __future__ import annotations

import sys
import time

import torch
from pfl.aggregate.simulate import SimulatedBackend
from pfl.algorithm.base import NNAlgorithmParams
from pfl.algorithm.federated_averaging import FederatedAveraging
from pfl.callback.base import TrainingProcessCallback
from pfl.callback.central_evaluation import CentralEvaluationCallback
from pfl.data.federated_dataset import FederatedDataset
from pfl.data.pytorch import PyTorchTensorDataset
from pfl.data.sampling import get_user_sampler
from pfl.hyperparam.base import NNEvalHyperParams, NNTrainHyperParams
from pfl.metrics import Metrics, Weighted
from pfl.model.pytorch import PyTorchModel
from torch.nn.functional import cross_entropy

from tests.benchmarks.peers.networks import mlp
from tests.benchmarks.peers.recipes import FEDERATED, Recipe, load, pace, tell
from tests.benchmarks.peers.torch_training import Pair, tensors


class Network(torch.nn.Sequential):
    """The network with what pfl asks of it."""

    def loss(self, inputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of a batch."""
        return cross_entropy(self(inputs), targets)

    @torch.no_grad()
    def metrics(self, inputs: torch.Tensor, targets: torch.Tensor) -> dict[str, Weighted]:
        """The right classes of so many examples."""
        right = (self(inputs).argmax(1) == targets).sum().item()
        return {"accuracy": Weighted(right, len(targets))}


class Moments(TrainingProcessCallback):
    """When each round ended, after those that are called before it."""

    def __init__(self) -> None:
        self.ended: list[float] = []

    def after_central_iteration(self, metrics: Metrics, model: PyTorchModel, **round: int) -> tuple[bool, Metrics]:
        """Take the time, and go on."""
        self.ended.append(time.perf_counter())
        return False, Metrics()


def run(recipe: Recipe, parts: list[Pair], held_out: Pair, cohort: int) -> list[float]:
    """When each round ended, after a look at the held-out examples."""
    torch.manual_seed(0)  # every process begins from one network
    network, moments = Network(*mlp(recipe.sizes)), Moments()
    model = PyTorchModel(network, torch.optim.SGD, torch.optim.SGD(network.parameters(), lr=1.0))
    datasets = [PyTorchTensorDataset(part) for part in parts]
    clients = FederatedDataset(datasets.__getitem__, get_user_sampler("minimize_reuse", range(len(datasets))))
    FederatedAveraging().run(
        NNAlgorithmParams(recipe.rounds, recipe.rounds, cohort, val_cohort_size=0),
        SimulatedBackend(clients, clients),
        model,
        NNTrainHyperParams(recipe.batch, local_num_epochs=1, local_learning_rate=recipe.lr),
        NNEvalHyperParams(None),
        [CentralEvaluationCallback(PyTorchTensorDataset(held_out)), moments],
        send_metrics_to_platform=False,
    )
    return moments.ended


def main(file: str, name: str) -> None:
    """Tell of the rounds."""
    recipe, (train, held_out) = FEDERATED[name], load(file)
    parts = [tensors(train.part(number, recipe.partitions)) for number in range(recipe.partitions)]
    ended = run(recipe, parts, tensors(held_out), recipe.cohort or recipe.partitions)
    if torch.distributed.get_rank() == 0:
        tell(round=1e3 * pace(ended))
    torch.distributed.barrier()
    torch.distributed.destroy_process_group()  # which pfl made when it was imported


if __name__ == "__main__":
    main(*sys.argv[1:])
