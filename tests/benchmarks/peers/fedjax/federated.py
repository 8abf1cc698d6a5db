"""Rounds of federated averaging by FedJAX, in one process; arguments: the examples, which recipe."""

from __future__ import annotations

import sys
import time

import jax

from tests.benchmarks.peers.fedjax.training import accuracy, initial, loss, rounds
from tests.benchmarks.peers.recipes import COHORT, FEDERATED, load, pace, tell


def main(file: str, name: str) -> None:
    """Tell of the rounds, each with a look at the held-out examples."""
    recipe, (train, held_out) = FEDERATED[name], load(file)
    parts = [train.part(number, recipe.partitions) for number in range(recipe.partitions)]
    gradient, cohort = jax.jit(jax.grad(loss)), COHORT if name == "cohort" else None
    trained, ended = rounds(initial(recipe.sizes), gradient, parts, recipe, cohort, num_epochs=1), []
    for _, params in zip(range(recipe.rounds), trained, strict=False):
        float(accuracy(params, held_out.inputs, held_out.targets))
        ended.append(time.perf_counter())
    tell(round=1e3 * pace(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
