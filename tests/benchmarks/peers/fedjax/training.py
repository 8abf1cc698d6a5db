"""A network for FedJAX, and its federated averaging with everybody taking part."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Any

import fedjax
import jax
import jax.numpy as jnp

from tests.benchmarks.peers.recipes import Arrays, Recipe


def initial(sizes: Sequence[int]) -> list[tuple[jax.Array, jax.Array]]:
    """Weights and biases of linear layers, drawn as torch draws them."""
    layers, key = [], jax.random.PRNGKey(0)
    for inputs, outputs in pairwise(sizes):
        key, weights, biases = jax.random.split(key, 3)
        bound = inputs**-0.5
        weight = jax.random.uniform(weights, (inputs, outputs), minval=-bound, maxval=bound)
        layers.append((weight, jax.random.uniform(biases, (outputs,), minval=-bound, maxval=bound)))
    return layers


def outputs(params: Any, inputs: jax.Array) -> jax.Array:
    """(examples, features) -> (examples, outputs)."""
    for weight, bias in params[:-1]:
        inputs = jax.nn.relu(inputs @ weight + bias)
    weight, bias = params[-1]
    return inputs @ weight + bias


def loss(params: Any, batch: Any, rng: Any) -> jax.Array:
    """The mean cross-entropy of a batch."""
    chances = jax.nn.log_softmax(outputs(params, batch["x"]))
    return -jnp.take_along_axis(chances, batch["y"][:, None], 1).mean()


@jax.jit
def accuracy(params: Any, inputs: jax.Array, targets: jax.Array) -> jax.Array:
    """The share of right classes."""
    return (outputs(params, inputs).argmax(1) == targets).mean()


def rounds(params: Any, gradient: Any, parts: Sequence[Arrays], recipe: Recipe) -> Iterator[Any]:
    """The parameters after each round of all clients or of a cohort, without end; each makes one pass."""
    batching = fedjax.ShuffleRepeatBatchHParams(batch_size=recipe.batch, num_epochs=1)
    descent = fedjax.optimizers.sgd
    algorithm = fedjax.algorithms.fed_avg.federated_averaging(
        gradient, descent(learning_rate=recipe.lr), descent(learning_rate=1.0), batching
    )
    datasets = [fedjax.ClientDataset({"x": part.inputs, "y": part.targets}) for part in parts]
    state, key = algorithm.init(params), jax.random.PRNGKey(1)
    while True:
        key, own = jax.random.split(key)
        drawn = random.sample(range(len(datasets)), recipe.cohort or len(datasets))
        keys = jax.random.split(own, len(drawn))
        clients = [(str(number).encode(), datasets[number], key) for number, key in zip(drawn, keys, strict=True)]
        state, _ = algorithm.apply(state, clients)
        yield jax.block_until_ready(state.params)
