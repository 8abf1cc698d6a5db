"""What all parameter servers that are compared have in common: the network, the gradient, and the step."""

from __future__ import annotations

import itertools
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch.nn.functional import cross_entropy
from torch.nn.utils import parameters_to_vector, vector_to_parameters

from roundweave.tasks.networks.reference import Mlp

BATCH = 32
LR = 0.05
WARM_SECONDS = 1.0
"""What comes before is not counted."""


def network() -> Mlp:
    """784-256-10: 203,530 parameters of float32."""
    torch.manual_seed(0)
    return Mlp((1, 28, 28), 10, 256)


def initial() -> torch.Tensor:
    """Its parameters as one vector."""
    return parameters_to_vector(network().parameters()).detach()


class Learner:
    """Gradients of random batches of a worker's half of the examples, with one thread."""

    def __init__(self, file: Path, worker: int) -> None:
        torch.set_num_threads(1)
        with np.load(file) as arrays:
            self.inputs, self.targets = (torch.from_numpy(arrays[name][worker::2]) for name in ("x", "y"))
        self.network = network()
        self.generator = torch.Generator().manual_seed(worker)

    def gradient(self, vector: torch.Tensor) -> torch.Tensor:
        """Of the mean loss over a batch, at these parameters: one vector of their size."""
        vector_to_parameters(vector, self.network.parameters())
        rows = torch.randint(len(self.targets), (BATCH,), generator=self.generator)
        loss = cross_entropy(self.network(self.inputs[rows]), self.targets[rows])
        return parameters_to_vector(torch.autograd.grad(loss, list(self.network.parameters())))


class Server:
    """Holds the parameters, a tensor or an array of numpy, and descends by each gradient that is pushed."""

    def __init__(self, vector: Any, seconds: float) -> None:
        self.vector = vector
        self.seconds = WARM_SECONDS + seconds
        self.times: list[float] = []
        self.lock = threading.Lock()

    def pull(self) -> Any:
        """The newest parameters; they never change, a step makes new ones."""
        return self.vector

    def push(self, gradient: Any) -> bool:
        """Take a step; whether there is time for another."""
        with self.lock:
            self.vector = self.vector - LR * gradient
            self.times.append(time.perf_counter())
            return self.times[-1] - self.times[0] < self.seconds

    def taken(self) -> list[float]:
        """When each step was taken, in seconds."""
        return self.times


def rate(times: list[float]) -> float:
    """Updates a second, from the time of each in seconds."""
    counted = list(itertools.dropwhile(lambda moment: moment < times[0] + WARM_SECONDS, times))
    return (len(counted) - 1) / (counted[-1] - counted[0])
