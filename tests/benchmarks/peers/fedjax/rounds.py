"""Federated averaging by FedJAX, in one process; arguments: the examples, which recipe."""

from __future__ import annotations

import sys

import jax

from tests.benchmarks.peers.fedjax.training import accuracy, initial, loss, rounds
from tests.benchmarks.peers.recipes import ROUNDS, load, tell_rounds


def main(file: str, name: str) -> None:
    """Tell of the rounds."""
    recipe, (train, held_out) = ROUNDS[name], load(file)
    parts = [train.part(number, recipe.partitions) for number in range(recipe.partitions)]
    trained = rounds(initial(recipe.sizes), jax.jit(jax.grad(loss)), parts, recipe)
    tell_rounds(name, trained, lambda params: float(accuracy(params, held_out.inputs, held_out.targets)))


if __name__ == "__main__":
    main(*sys.argv[1:])
