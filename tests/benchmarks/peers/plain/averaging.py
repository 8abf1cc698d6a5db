"""Federated averaging as a loop in one process."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Sequence

import torch
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from tests.benchmarks.peers.networks import mlp
from tests.benchmarks.peers.recipes import Recipe
from tests.benchmarks.peers.torch_training import Pair, train


def rounds(
    recipe: Recipe, parts: Sequence[Pair], steps: int | None = None, cohort: int | None = None
) -> Iterator[torch.nn.Module]:
    """The network after each round of all partitions or of a cohort, without end; partitions are of one size."""
    network = mlp(recipe.sizes)
    start = parameters_to_vector(network.parameters()).detach()
    while True:
        total = torch.zeros_like(start)
        drawn = random.sample(parts, cohort or len(parts))
        for part in drawn:
            vector_to_parameters(start.clone(), network.parameters())
            train(network, part, recipe, steps)
            total += parameters_to_vector(network.parameters()).detach()
        start = total / len(drawn)
        vector_to_parameters(start.clone(), network.parameters())
        yield network


def moments(networks: Iterator[torch.nn.Module], count: int) -> Iterator[float]:
    """When each of so many rounds ended."""
    for _, _ in zip(range(count), networks, strict=False):
        yield time.perf_counter()
