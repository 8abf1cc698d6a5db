"""Rounds of federated averaging by a loop in one process of one thread; arguments: the examples, which recipe."""

from __future__ import annotations

import sys
import time

import torch

from tests.benchmarks.peers.plain.averaging import rounds
from tests.benchmarks.peers.recipes import COHORT, FEDERATED, load, pace, tell
from tests.benchmarks.peers.torch_training import accuracy, tensors


def main(file: str, name: str) -> None:
    """Tell of the rounds, each with a look at the held-out examples."""
    torch.set_num_threads(1)  # for batches this small more are slower
    recipe, (train, held_out) = FEDERATED[name], load(file)
    parts = [tensors(train.part(number, recipe.partitions)) for number in range(recipe.partitions)]
    trained, ended = rounds(recipe, parts, cohort=COHORT if name == "cohort" else None), []
    for _, network in zip(range(recipe.rounds), trained, strict=False):
        accuracy(network, tensors(held_out))
        ended.append(time.perf_counter())
    tell(round=1e3 * pace(ended))


if __name__ == "__main__":
    main(*sys.argv[1:])
