"""Rounds of many small clients by a loop in one process of one thread; argument: the examples."""

from __future__ import annotations

import sys

import torch

from tests.benchmarks.peers.plain.averaging import moments, rounds
from tests.benchmarks.peers.recipes import CLIENTS, load, pace, tell
from tests.benchmarks.peers.torch_training import tensors


def main(file: str) -> None:
    """Tell of the rounds."""
    torch.set_num_threads(1)  # for batches this small more are slower
    train, _ = load(file)
    parts = [tensors(train.part(number, CLIENTS.partitions)) for number in range(CLIENTS.partitions)]
    tell(round=1e3 * pace(list(moments(rounds(CLIENTS, parts), CLIENTS.rounds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
