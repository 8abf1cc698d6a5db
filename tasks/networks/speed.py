"""How fast a process is at a run's own backprop."""

from __future__ import annotations

import time

from storage.errors import ModelError, failing_as, located
from tasks.data.partitions import Partitions
from tasks.networks.objective import Objective
from tasks.numerics import pinned

BATCH = 32
"""Examples of a step that is measured."""


def batches_per_second(objective: Objective, partitions: Partitions, threads: int, seconds: float) -> float:
    """The steps of forward and backward pass that this process does in a second, measured for so many seconds.

    At least one is done. Raises `ModelError` where the network or its loss fails.
    """
    examples = partitions.sample(0, BATCH)
    network = objective.network(objective.initial())
    done, passed = 0, 0.0
    with failing_as(lambda error: ModelError(f"backprop fails with {located(error)}")), pinned(0, threads):
        began = time.perf_counter()
        # All of the time counts, and not the median step: a process that is held back is so between steps, too.
        while not done or passed < seconds:
            objective.value(network(examples.inputs), examples.targets).backward()
            network.zero_grad()
            done, passed = done + 1, time.perf_counter() - began
    return done / passed
