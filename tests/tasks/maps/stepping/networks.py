"""Networks of a user's: those whose steps can be replayed, and those whose steps cannot, with the reason."""

from __future__ import annotations

from textwrap import indent

HEAD = """
import functools, math, random, time
import numpy as np
import torch
from random import random as uniform
from torch import nn
from torch.nn import functional as F

CALLS, SEEN, SCALE, HIDDEN = 0, [], 0.5, torch.ones(3, requires_grad=True)

def stepping():
    count = 0
    def step(self, x):
        nonlocal count
        count += 1
        return self.last(self.first(x.flatten(1)) * count)
    return step

STEP = stepping()

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


SOUND = {
    "plain": """
def forward(self, x):
    return self.last(F.relu(self.first(x.flatten(1))))
""",
    "constants": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * self.table * SCALE + math.pi)
""",
    "options": """
def forward(self, x):
    return self.last(F.leaky_relu(self.first(x.flatten(1)), self.options['slope']))
""",
    "loop": """
def forward(self, x):
    x = self.first(x.flatten(1))
    for _ in range(3):
        x = torch.tanh(x)
    return self.last(x)
""",
    "made": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * torch.tensor([1.0, 2, 3, 4, 5, 6]))
""",
    "shape": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * (2 if len(x) > 4 else 3))
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
    "unused": """
def forward(self, x):
    return self.first(x.flatten(1))[:, :3]
""",
    "twice": """
def forward(self, x):
    return (self.first(x.flatten(1)) @ self.first.weight)[:, :3]
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
    "method": """
def half(self, x):
    return x / 2

def forward(self, x):
    return self.last(self.half(self.first(x.flatten(1))))
""",
    "listed": """
def forward(self, x):
    parts = [part.sum(1, True) for part in self.first(x.flatten(1)).split(1, 1)]
    return self.last(torch.cat(parts, 1))
""",
    "inputs": """
def forward(self, x):
    x.mul_(0.99)
    return self.last(self.first(x.flatten(1)))
""",
    "indexed": """
def forward(self, x):
    x = self.first(x.flatten(1))
    x[:, 0] = 0
    return self.last(x[:, [5, 4, 3, 2, 1, 0]])
""",
    "number": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x) * (x.mean() * 2 + 1)
""",
    "mask": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x.masked_fill(x > 1, float('inf')).clamp(max=2.0))
""",
    "double": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)).double().softmax(1).float())
""",
}

UNSOUND = {
    "counter": (
        "has calls",
        """
def forward(self, x):
    self.calls += 1
    return self.last(self.first(x.flatten(1)) * self.calls)
""",
    ),
    "of the file": (
        "changes CALLS",
        """
def forward(self, x):
    global CALLS
    CALLS += 1
    return self.last(self.first(x.flatten(1)) * CALLS)
""",
    ),
    "list of the file": (
        "reads SEEN",
        """
def forward(self, x):
    SEEN.append(1)
    return self.last(self.first(x.flatten(1)) * len(SEEN))
""",
    ),
    "own list": (
        "has log",
        """
def forward(self, x):
    self.log.append(1)
    return self.last(self.first(x.flatten(1)) * len(self.log))
""",
    ),
    "list of the class": (
        "class that may change",
        """
tally = []

def forward(self, x):
    self.tally.append(1)
    return self.last(self.first(x.flatten(1)) * len(self.tally))
""",
    ),
    "default": (
        "given seen",
        """
def forward(self, x, seen=[]):
    seen.append(1)
    return self.last(self.first(x.flatten(1)) * len(seen))
""",
    ),
    "cell": (
        "changes count",
        """
def forward(self, x):
    return STEP(self, x)
""",
    ),
    "branch": (
        "depends on data",
        """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x if x.sum() > 0 else -x)
""",
    ),
    "item": (
        "depends on data",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * x.max().item())
""",
    ),
    "nonzero": (
        "depends on data",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) + len(x.nonzero())
""",
    ),
    "masked": (
        "depends on data",
        """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x) + x[x > 0].sum()
""",
    ),
    "tolist": (
        "tensor's tolist",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) * x.flatten().tolist()[0]
""",
    ),
    "equal": (
        "aten.equal",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) * (2 if torch.equal(x, x.abs()) else 3)
""",
    ),
    "python": (
        "reads random",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * random.random())
""",
    ),
    "from python": (
        "generator's random",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * uniform())
""",
    ),
    "numpy": (
        "reads np",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * float(np.random.rand()))
""",
    ),
    "clock": (
        "reads time",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * (time.time() > 0))
""",
    ),
    "constant": (
        "has table",
        """
def forward(self, x):
    self.table.add_(1)
    return self.last(self.first(x.flatten(1)) * self.table)
""",
    ),
    "sum": (
        "no buffer",
        """
def forward(self, x):
    total = torch.tensor(0.0)
    total += x.sum()
    return self.last(self.first(x.flatten(1)) * total)
""",
    ),
    "replaced": (
        "replaces tensors",
        """
def forward(self, x):
    self.mean = self.mean + 1
    return self.last(self.first(x.flatten(1)) - self.mean)
""",
    ),
    "first time": (
        "may change",
        """
def forward(self, x):
    setattr(self, 'calls', 1)
    return self.last(self.first(x.flatten(1)))
""",
    ),
    "seeded": (
        "generator",
        """
def forward(self, x):
    torch.manual_seed(1)
    return self.last(self.first(x.flatten(1) + torch.randn(16)))
""",
    ),
    "own generator": (
        "may change",
        """
def __init__(self):
    super().__init__()
    self.source = torch.Generator().manual_seed(3)

def forward(self, x):
    return self.last(self.first(x.flatten(1) + torch.randn(16, generator=self.source)))
""",
    ),
    "hook": (
        "hooks",
        """
def __init__(self):
    super().__init__()
    self.first.register_forward_hook(lambda module, inputs, output: output * 2)

def forward(self, x):
    return self.last(self.first(x.flatten(1)))
""",
    ),
    "told": (
        "builtins's print",
        """
def forward(self, x):
    print(end='')
    return self.last(self.first(x.flatten(1)))
""",
    ),
    "hidden": (
        "does not know",
        """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) + HIDDEN
""",
    ),
}
