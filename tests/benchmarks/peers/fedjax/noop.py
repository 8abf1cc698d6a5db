"""Rounds of FedJAX that compute next to nothing, in one process; arguments: the examples, numbers of clients."""

from __future__ import annotations

import sys
import time
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.benchmarks.peers.fedjax.training import rounds
from tests.benchmarks.peers.recipes import ELEMENTS, EMPTY_ROUNDS, Arrays, Recipe, pace, tell


@jax.jit
def little(params: Any, batch: Any, rng: Any) -> Any:
    """A little of the parameters, for a gradient."""
    return params * 1e-3


def seconds(clients: int) -> float:
    """A round with so many, of two examples each."""
    nothing = Arrays(np.zeros((2, 1), np.float32), np.zeros(2, np.int64))
    recipe = Recipe((), clients, batch=2, rounds=EMPTY_ROUNDS)
    trained = rounds(jnp.ones(ELEMENTS), little, [nothing] * clients, recipe)
    return pace([time.perf_counter() for _, _ in zip(range(recipe.rounds), trained, strict=False)], 5)


def main(file: str, *clients: str) -> None:
    """Tell of the milliseconds a round, by the number of clients."""
    tell(**{number: 1e3 * seconds(int(number)) for number in clients})


if __name__ == "__main__":
    main(*sys.argv[1:])
