"""Rounds of federated averaging by BlazeFL, in one process of one thread; arguments: examples, which recipe."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence

import torch
from blazefl.contrib import FedAvgBaseClientTrainer, FedAvgBaseServerHandler
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler, TensorDataset

from tests.benchmarks.peers.networks import mlp
from tests.benchmarks.peers.recipes import FEDERATED, Recipe, load, tell_rounds
from tests.benchmarks.peers.torch_training import accuracy, tensors


class Clients:
    """The examples of each, which a loader fetches by batches, not one by one."""

    def __init__(self, datasets: Sequence[TensorDataset]) -> None:
        self.datasets = datasets

    def get_dataset(self, type_: str, cid: int | None) -> Dataset:
        """Those of a client."""
        return self.datasets[cid]

    def get_dataloader(
        self, type_: str, cid: int | None, batch_size: int, generator: torch.Generator | None
    ) -> DataLoader:
        """One pass over them, in a new order."""
        dataset = self.datasets[cid]
        batches = BatchSampler(RandomSampler(dataset, generator=generator), batch_size, drop_last=False)
        return DataLoader(dataset, sampler=batches, batch_size=None)


class Networks:
    """The network of a recipe, under whatever name."""

    def __init__(self, recipe: Recipe) -> None:
        self.recipe = recipe

    def select_model(self, model_name: str) -> torch.nn.Module:
        """A new one."""
        return mlp(self.recipe.sizes)


def main(file: str, name: str) -> None:
    """Tell of the rounds, each with a look at the held-out examples."""
    torch.set_num_threads(1)  # for batches this small more are slower
    recipe, (train, held_out) = FEDERATED[name], load(file)
    count = recipe.partitions
    clients = Clients([TensorDataset(*tensors(train.part(number, count))) for number in range(count)])
    cohort = recipe.cohort or count
    given = (Networks(recipe), "mlp", clients)
    server = FedAvgBaseServerHandler(*given, recipe.rounds, count, cohort / count, "cpu", recipe.batch, seed=0)
    trainer = FedAvgBaseClientTrainer(*given, "cpu", count, 1, recipe.batch, recipe.lr, seed=0)

    def rounds() -> Iterator[torch.nn.Module]:
        while not server.if_stop():
            trainer.local_process(server.downlink_package(), server.sample_clients())
            for package in trainer.uplink_package():
                server.load(package)
            yield server.model

    tell_rounds(name, rounds(), lambda network: accuracy(network, tensors(held_out)))


if __name__ == "__main__":
    main(*sys.argv[1:])
