"""FedProx by hand and in runs."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from storage.errors import UsageError
from tasks.algorithms.table import build_algorithm
from tasks.data.examples import Examples
from tasks.maps.corrected import FedProx
from tasks.networks.objective import ModelSpec, Objective
from tasks.user_code import find_code
from tests.tasks.sampled import sampled

SQUARE = """
import torch
class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = torch.nn.Parameter(torch.tensor([2.0]))
    def forward(self, inputs):
        return self.weight * inputs
def loss(outputs, targets):
    return (outputs - targets).square().mean() / 2
"""


@pytest.fixture
def square(own) -> Objective:
    """(w - target)^2 / 2, from w = 2."""
    path = own(SQUARE)
    return Objective(ModelSpec(find_code(f"{path}:Net"), (1,), 1, "float32", 0), find_code(f"{path}:loss"))


def towards(target: float) -> Examples:
    return Examples(torch.ones(3, 1), torch.full((3, 1), target))


def test_two_steps_by_hand(square: Objective) -> None:
    """From 2 towards 0 with lr 0.5 and mu 1: gradients 2 and 1 - 1; the second is 1 towards 0 and 1 back."""
    local = FedProx(local_steps=2, batch_size=None, lr=0.5, mu=1.0)
    update = local(square, square.initial(), towards(0.0), {}, 0)
    assert update.direction["float32"].tolist() == [1.0]
    free = replace(local, mu=0.0)(square, square.initial(), towards(0.0), {}, 0)
    assert free.direction["float32"].tolist() == [1.5]
    # The loss that is told is that of the examples: 4/2 and 1/2.
    assert update.metrics == {"train_loss": 1.25}


def test_it_rests_between_the_start_and_the_minimum(square: Objective) -> None:
    """Of w^2/2 + (mu/2)(w - 2)^2 the minimum is at 2 mu / (1 + mu)."""
    for mu in (0.5, 1.0, 3.0):
        update = FedProx(local_steps=300, batch_size=None, lr=0.1, mu=mu)(
            square, square.initial(), towards(0.0), {}, 0
        )
        assert 2 - update.direction["float32"].item() == pytest.approx(2 * mu / (1 + mu), abs=1e-4)


@pytest.mark.parametrize(
    ("options", "model"),
    sampled(5, [{}, {"optimizer": "AdamW", "lr": 1e-3}, {"clip_norm": 0.5, "momentum": 0.9}], ["mlp", "cnn"]),
)
def test_without_mu_it_has_the_bits_of_federated_averaging(model: str, options: dict[str, object]) -> None:
    objective = Objective(ModelSpec(model, (1, 8, 8), 10, "float32", 0), "cross_entropy")
    examples = Examples(torch.rand(40, 1, 8, 8), torch.arange(40) % 10)
    plain, held, free = (
        build_algorithm(name, {"batch_size": 8, **options, **more})
        for name, more in (("fed_avg", {}), ("fed_prox", {}), ("fed_prox", {"mu": 0.0}))
    )
    assert (free.reduce, free.apply) == (plain.reduce, plain.apply)
    one, two, three = (a.map(objective, objective.initial(), examples, {}, 7) for a in (plain, free, held))
    assert torch.equal(one.direction["float32"], two.direction["float32"])
    assert not torch.equal(one.direction["float32"], three.direction["float32"])


def test_mu_is_a_weight() -> None:
    with pytest.raises(UsageError, match="mu = -1: Input should be greater than or equal to 0"):
        FedProx(local_steps=1, mu=-1)
