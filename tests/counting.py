"""Code of one's own that carries and sends extras, over buffers and frozen tensors; some updates are refused."""

from __future__ import annotations

from collections.abc import Callable

COUNTING = """
from dataclasses import dataclass, replace
import torch
from torch import nn
import roundweave as rw

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm, self.head = nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 2)
        self.head.weight.requires_grad_(False)
        self.again = self.first.bias
    def forward(self, inputs):
        return self.head(nn.functional.dropout(self.norm(self.first(inputs)), 0.3, self.training))

@dataclass(frozen=True)
class Counting(rw.Map):
    '''Carries how often it was accepted; partition 1 is unsound in round 2, and no update in round 3.'''
    carry = ("memory",)
    extras = ("control",)
    def __call__(self, objective, state, examples, carry, seed):
        if state.round == 2 and examples.inputs[0, 0] == 1:
            return "nothing"
        update = rw.LocalSteps(local_steps=2, batch_size=8, lr=0.1)(objective, state, examples, {}, seed)
        zeros = {name: torch.zeros_like(vector) for name, vector in state.params.items()}
        memory = {name: vector + 1 for name, vector in carry.get("memory", zeros).items()}
        if state.round == 1 and examples.inputs[0, 0] == 1:
            memory = {name: vector * float("nan") for name, vector in memory.items()}
        direction = {name: vector / memory[name] for name, vector in update.direction.items()}
        return replace(update, direction=direction, carry={"memory": memory}, extras={"control": update.direction})

def data(partition, partitions):
    generator = torch.Generator().manual_seed(partition)
    inputs = torch.randn(40, 4, generator=generator)
    inputs[:, 0] = partition
    return inputs, (inputs[:, 1] > 0).long()

def algorithm():
    return rw.Algorithm(Counting(), rw.Mean(), rw.Sgd(0.3, 0.9))
"""


def counting(own: Callable[[str], str]) -> dict[str, str]:
    """The fields of a configuration with this code, written by the fixture `own`."""
    path = own(COUNTING)
    return {"data": f"{path}:data", "model": f"{path}:Net", "algorithm": f"{path}:algorithm"}
