"""A user's functions that no run can be made of; rows of the tables name them."""

from dataclasses import dataclass
from typing import Annotated

import torch
from pydantic import Field

import roundweave as rw

# Optimizers, parts and algorithms; `tests/refusals/algorithms.py` names them.


def own_optimizer(network):
    return torch.optim.SGD(network.parameters(), lr=0.1)


def no_optimizer(network):
    return None


def failing_optimizer(network):
    return torch.optim.SGD(network.nothing(), lr=0.1)


def optimizer_of_others(network):
    return torch.optim.SGD([*network.parameters(), torch.nn.Parameter(torch.ones(1))], lr=0.1)


def optimizer_of_some(network):
    return torch.optim.SGD([*network.parameters()][1:], lr=0.1)


class Broken(torch.optim.SGD):
    def step(self):
        self.nothing  # noqa: B018


def broken_optimizer(network):
    return Broken(network.parameters(), lr=0.1)


def searching_optimizer(network):
    return torch.optim.LBFGS(network.parameters())


@dataclass(frozen=True)
class Typo(rw.Robust):
    def centre(self, points):
        return points.mean(0)


@dataclass(frozen=True)
class Wants(rw.Robust):
    f: int

    def center(self, points):
        return points.mean(0)


def middle():
    return rw.Median()


def returns_three():
    return 3


def stepping(rate: Annotated[float, Field(gt=0)] = 0.5, steps: int = 3):
    return rw.Algorithm(rw.Gradient(), rw.Mean(), rw.Sgd(rate / (steps - 4)))


# Data and networks; `tests/refusals/data.py` and `tests/refusals/networks.py` name them.


def arrays():
    return torch.ones(20, 2), torch.arange(20) % 2


def not_a_network():
    return 3


def lazy():
    return torch.nn.LazyLinear(3)


def no_parameter():
    return torch.nn.Flatten()


def fails():
    raise OSError("no such file: weights.pt")


def narrow():
    return torch.nn.Sequential(torch.nn.Flatten(), torch.nn.Linear(64, 2))


def other_inputs():
    return torch.nn.Linear(5, 3)


def loss_of_many(outputs, targets):
    return outputs - 1


def loss_of_no_tensor(outputs, targets):
    return 0.5
