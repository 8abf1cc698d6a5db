"""Networks as users write them: steps that branch, fail, draw, count, or reach past the operations of torch."""

from __future__ import annotations

from textwrap import indent

import torch

from roundweave.tasks.data.examples import Examples
from roundweave.tasks.networks.objective import ModelSpec, Objective


def objective(model: str = "mlp", dtype: str = "float32") -> Objective:
    return Objective(ModelSpec(model, (1, 4, 4), 3, dtype, 0), "cross_entropy")


def examples(count: int = 50, dtype: str = "float32") -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 1, 4, 4, generator=generator).to(getattr(torch, dtype))
    return Examples(inputs, torch.randint(0, 3, (count,), generator=generator))


HEAD = """
import random
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

class Base(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(16, 6), nn.Linear(6, 3)
        self.calls, self.log, self.table = 0, [], torch.ones(6)
        self.options = {"slope": 0.1, "shape": (1, 4)}
        self.register_buffer("mean", torch.zeros(6))
        self.register_buffer("mask", torch.ones(6), persistent=False)

class Net(Base):
"""


def file_of(body: str) -> str:
    """A file with the class Net, which reads (examples, 1, 4, 4) and gives (examples, 3), with this body."""
    return HEAD + indent(body, "    ") + "\n"


PURE = {
    "plain": """
def forward(self, x):
    return self.last(F.relu(self.first(x.flatten(1))))
""",
    "buffer": """
def forward(self, x):
    x = self.first(x.flatten(1))
    with torch.no_grad():
        self.mean.mul_(0.9).add_(x.mean(0), alpha=0.1)
    return self.last(x - self.mean)
""",
    "unkept buffer": """
def forward(self, x):
    self.mask.mul_(0.5)
    return self.last(self.first(x.flatten(1)) * self.mask)
""",
    "parameter": """
def forward(self, x):
    with torch.no_grad():
        self.first.weight.clamp_(-0.1, 0.1)
    return self.last(self.first(x.flatten(1)))
""",
    "noise": """
def forward(self, x):
    return self.last(self.first(x.flatten(1) + torch.randn(16)))
""",
    "tied": """
def __init__(self):
    super().__init__()
    self.again = nn.Linear(6, 16)
    self.again.weight = nn.Parameter(torch.ones(16, 6))
    self.back = nn.Linear(16, 6)
    self.first.weight = self.back.weight

def forward(self, x):
    return self.last(self.back(self.again(self.first(x.flatten(1)))))
""",
    "one gradient": """
def forward(self, x):
    return x.flatten(1)[:, :3] + self.last.bias + self.first.bias[:3] + self.last.weight[:, 0]
""",
    "frozen": """
def __init__(self):
    super().__init__()
    self.first.weight.requires_grad_(False)

def forward(self, x):
    return self.last(self.first(x.flatten(1)))
""",
    "inputs": """
def forward(self, x):
    x.mul_(0.99)
    return self.last(self.first(x.flatten(1)))
""",
    "counter": """
def forward(self, x):
    self.calls += 1
    return self.last(self.first(x.flatten(1)) * self.calls)
""",
    "branch": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x if x.sum() > 0 else -x)
""",
    "python": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * random.random())
""",
    "own generator": """
def __init__(self):
    super().__init__()
    self.source = torch.Generator().manual_seed(3)

def forward(self, x):
    return self.last(self.first(x.flatten(1) + torch.randn(16, generator=self.source)))
""",
    "hook": """
def __init__(self):
    super().__init__()
    self.first.register_forward_hook(lambda module, inputs, output: output * 2)

def forward(self, x):
    return self.last(self.first(x.flatten(1)))
""",
    "local losses": """
def forward(self, x):
    hidden = self.first(x.flatten(1))
    if torch.is_grad_enabled():
        hidden.square().mean().backward()
    return self.last(hidden.detach())
""",
    "again": """
def forward(self, x):
    x = x.flatten(1).requires_grad_()
    return self.last(checkpoint(self.first, x, use_reentrant=True))
""",
    "gradient penalty": """
def forward(self, x):
    x = x.flatten(1).requires_grad_()
    hidden = self.first(x).square()
    (slope,) = torch.autograd.grad(hidden.sum(), x, create_graph=True)
    return self.last(hidden) + slope.square().sum()
""",
    "norm of weights": """
def __init__(self):
    super().__init__()
    self.first = nn.utils.parametrizations.spectral_norm(self.first)

def forward(self, x):
    return self.last(self.first(x.flatten(1)))
""",
    "batch norm": """
def __init__(self):
    super().__init__()
    self.norm = nn.BatchNorm1d(6)

def forward(self, x):
    return self.last(self.norm(self.first(x.flatten(1))))
""",
    "hook after the gradient": """
def __init__(self):
    super().__init__()
    self.first.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.sign()))

def forward(self, x):
    return self.last(self.first(x.flatten(1)))
""",
}
"""What a step does follows from the network, the batch and the generators."""
