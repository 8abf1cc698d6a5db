"""A file of a user whose partitions are each drawn to a number of their own, and parts for its reduce."""

TARGETS = (1.0, 2.0, 3.0, 4.0, 10.0)

MINE = """
from dataclasses import dataclass
import torch
import roundweave as rw

TARGETS = {targets}

def data():
    targets = torch.tensor(TARGETS)[:, None]
    held_out = rw.Examples(torch.ones(1, 1), torch.tensor([[6.0]]))
    return rw.Dataset(rw.Examples(torch.ones(len(TARGETS), 1), targets), held_out)

@dataclass(frozen=True)
class Towards(rw.Map):
    '''What is left to the mean target of the partition; with targets over 50, no number.'''
    def __call__(self, objective, state, examples, carry, seed):
        target = examples.targets.double().mean()
        target = target if target < 50 else target / 0
        return rw.Update({{k: p - target for k, p in state.params.items()}}, weight=1)

def algorithm(*, momentum: float = 0.0):
    return rw.Algorithm(Towards(), rw.Mean(), rw.Sgd(momentum=momentum))

class Least(rw.Robust):
    def center(self, points):
        return points.max(0).values
"""
