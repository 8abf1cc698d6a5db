"""Federated averaging by a loop in one process of one thread; arguments: the examples, which recipe."""

from __future__ import annotations

import random
import sys
from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.benchmarks.peers.networks import mlp
from tests.benchmarks.peers.recipes import ROUNDS, Recipe, load, tell_rounds
from tests.benchmarks.peers.torch_training import Pair, accuracy, tensors, train


def rounds(recipe: Recipe, parts: Sequence[Pair]) -> Iterator[torch.nn.Module]:
    """The network after each round of all partitions or of a cohort, without end; partitions are of one size."""
    network = mlp(recipe.sizes)
    start = parameters_to_vector(network.parameters()).detach()
    while True:
        total = torch.zeros_like(start)
        drawn = random.sample(parts, recipe.cohort or len(parts))
        for part in drawn:
            vector_to_parameters(start.clone(), network.parameters())
            train(network, part, recipe)
            total += parameters_to_vector(network.parameters()).detach()
        start = total / len(drawn)
        vector_to_parameters(start.clone(), network.parameters())
        yield network


def main(file: str, name: str) -> None:
    """Tell of the rounds."""
    torch.set_num_threads(1)  # for batches this small more are slower
    recipe, (examples, held_out) = ROUNDS[name], load(file)
    parts = [tensors(examples.part(number, recipe.partitions)) for number in range(recipe.partitions)]
    tell_rounds(name, rounds(recipe, parts), lambda network: accuracy(network, tensors(held_out)))


if __name__ == "__main__":
    main(*sys.argv[1:])
