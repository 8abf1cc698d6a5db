"""A run whose ranks go another way than the whole network does stops, by the round."""

from __future__ import annotations

import pytest

from roundweave.flows.training import job
from roundweave.storage.errors import RoundFailed

MINE = """
import torch
from torch import nn

def data():
    inputs = torch.arange(600.0).reshape(100, 6).sin()
    return inputs, 1e4 * inputs.sum(1, keepdim=True)

class Saturating(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(6, 12), nn.Linear(12, 1)
    def forward(self, inputs):
        hidden = self.first(inputs).relu()
        return self.second(hidden + (hidden - 30).relu().sum(-1, keepdim=True))
"""


@pytest.fixture
def fields(own) -> dict[str, object]:
    file = own(MINE)
    options = {"data": f"{file}:data", "model": f"{file}:Saturating", "loss": "mse", "ranks": 2, "lr": 1e-4}
    return {**options, "partitions": 2, "local_steps": 2, "name": "run"}


@pytest.mark.parametrize(("every", "stops"), [(100, 12), pytest.param(10, 10, marks=pytest.mark.thorough)])
def test_a_run_is_compared_at_its_end_and_after_each_hundredth_round(
    train, fields, monkeypatch, every: int, stops: int
) -> None:
    """Targets of ten thousand draw activations past 30, where ranks would add up only their own."""
    monkeypatch.setattr(job, "COMPARED", every)
    says = rf"^round {stops}: ranks that share units first train another network than the"
    with pytest.raises(RoundFailed, match=says):
        train(**fields, rounds=12)


def test_the_network_as_it_begins_is_sound(train, fields) -> None:
    assert train(**fields, rounds=1).done == 1
