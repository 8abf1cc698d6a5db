"""Training by torch as one would write it by hand."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch.nn.functional import cross_entropy

from tests.benchmarks.peers.recipes import Arrays, Recipe

Pair = tuple[torch.Tensor, torch.Tensor]


def tensors(arrays: Arrays) -> Pair:
    """Inputs and targets over the same memory."""
    return torch.from_numpy(arrays.inputs), torch.from_numpy(arrays.targets)


def batches(examples: Pair, size: int) -> Iterator[Pair]:
    """Passes over the examples, without end, each in a new order."""
    inputs, targets = examples
    while True:
        for rows in torch.randperm(len(targets)).split(size):
            yield inputs[rows], targets[rows]


def train(network: torch.nn.Module, examples: Pair, recipe: Recipe) -> None:
    """One pass of plain descent."""
    optimizer = torch.optim.SGD(network.parameters(), lr=recipe.lr)
    drawn = batches(examples, recipe.batch)
    for _ in range(-(-len(examples[1]) // recipe.batch)):
        step(network, optimizer, next(drawn))


def step(network: torch.nn.Module, optimizer: torch.optim.Optimizer, batch: Pair) -> None:
    """One step on a batch."""
    optimizer.zero_grad()
    cross_entropy(network(batch[0]), batch[1]).backward()
    optimizer.step()


@torch.no_grad()
def accuracy(network: torch.nn.Module, examples: Pair) -> float:
    """The share of right classes."""
    return (network(examples[0]).argmax(1) == examples[1]).float().mean().item()
