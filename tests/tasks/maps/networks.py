"""Networks as users write them: steps that branch, fail, draw, count, or reach past the operations of torch."""

from __future__ import annotations

from textwrap import indent

HEAD = """
import math, random
import numpy as np
import torch
from random import random as uniform
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint

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


PURE = {
    "plain": """
def forward(self, x):
    return self.last(F.relu(self.first(x.flatten(1))))
""",
    "constants": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * self.table * SCALE + math.pi)
""",
    "made": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * torch.tensor([1.0, 2, 3, 4, 5, 6]))
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
    "counter": """
def forward(self, x):
    self.calls += 1
    return self.last(self.first(x.flatten(1)) * self.calls)
""",
    "own list": """
def forward(self, x):
    self.log.append(1)
    return self.last(self.first(x.flatten(1)) * len(self.log))
""",
    "branch": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x if x.sum() > 0 else -x)
""",
    "item": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * x.max().item())
""",
    "nonzero": """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) + len(x.nonzero())
""",
    "masked": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x) + x[x > 0].sum()
""",
    "tolist": """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) * x.flatten().tolist()[0]
""",
    "equal": """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) * (2 if torch.equal(x, x.abs()) else 3)
""",
    "python": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * random.random())
""",
    "from python": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * uniform())
""",
    "numpy": """
def forward(self, x):
    return self.last(self.first(x.flatten(1)) * float(np.random.rand()))
""",
    "constant": """
def forward(self, x):
    self.table.add_(1)
    return self.last(self.first(x.flatten(1)) * self.table)
""",
    "sum": """
def forward(self, x):
    total = torch.tensor(0.0)
    total += x.sum()
    return self.last(self.first(x.flatten(1)) * total)
""",
    "replaced": """
def forward(self, x):
    self.mean = self.mean + 1
    return self.last(self.first(x.flatten(1)) - self.mean)
""",
    "seeded": """
def forward(self, x):
    torch.manual_seed(1)
    return self.last(self.first(x.flatten(1) + torch.randn(16)))
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
    "grown": """
def forward(self, x):
    return self.last(self.first(x.flatten(1))) + HIDDEN
""",
    "cholesky": """
def forward(self, x):
    x = self.first(x.flatten(1))
    try:
        torch.linalg.cholesky(x.T @ x - torch.eye(6))
    except RuntimeError:
        x = x * 2
    return self.last(x)
""",
    "asserted": """
def forward(self, x):
    torch._assert_async((x.abs() < 100).all())
    return self.last(self.first(x.flatten(1)))
""",
    "inverse": """
def forward(self, x):
    try:
        torch.linalg.inv(torch.zeros(2, 2))
    except RuntimeError:
        self.calls += 1
    return self.last(self.first(x.flatten(1)) * self.calls)
""",
    "local losses": """
def forward(self, x):
    hidden = self.first(x.flatten(1))
    if torch.is_grad_enabled():
        hidden.square().mean().backward()
    return self.last(hidden.detach())
""",
    "packed": """
def __init__(self):
    super().__init__()
    self.cells = nn.LSTM(4, 6, batch_first=True)

def forward(self, x):
    lengths = 1 + (x.flatten(1).sum(1).abs().long() % 4)
    packed = nn.utils.rnn.pack_padded_sequence(x.squeeze(1), lengths, batch_first=True, enforce_sorted=False)
    return self.last(self.cells(packed)[1][0][-1])
""",
    "again": """
def forward(self, x):
    x = x.flatten(1).requires_grad_()
    return self.last(checkpoint(self.first, x, use_reentrant=True))
""",
    "again, without": """
def forward(self, x):
    return self.last(checkpoint(self.first, x.flatten(1), use_reentrant=False))
""",
    "dropped layers": """
def forward(self, x):
    x = self.first(x.flatten(1))
    for _ in range(3):
        if random.random() < 0.5:
            x = torch.tanh(x)
    return self.last(x)
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
    "own function": """
class Straight(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x.sign()

    @staticmethod
    def backward(ctx, gradient):
        return gradient

def forward(self, x):
    return self.last(self.Straight.apply(self.first(x.flatten(1))))
""",
    "gradient hook": """
def __init__(self):
    super().__init__()
    self.first.weight.register_hook(lambda gradient: gradient.sign())

def forward(self, x):
    return self.last(self.first(x.flatten(1)))
""",
    "hook after the gradient": """
def __init__(self):
    super().__init__()
    self.first.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, "grad", p.grad.sign()))

def forward(self, x):
    return self.last(self.first(x.flatten(1)))
""",
    "waves": """
def forward(self, x):
    return self.last(torch.fft.rfft(self.first(x.flatten(1)), 10).abs())
""",
    "in its place": """
def forward(self, x):
    return self.last(F.relu_(self.first(x.flatten(1)).mul_(2)))
""",
    "sparse": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(torch.sparse.mm(torch.eye(6).to_sparse(), x.T).T)
""",
    "counted buffer": """
def __init__(self):
    super().__init__()
    self.register_buffer("count", torch.zeros((), dtype=torch.int64))

def forward(self, x):
    self.count += 1
    return self.last(self.first(x.flatten(1)) / self.count)
""",
    "weights by hand": """
def forward(self, x):
    weight = self.first.weight * torch.sigmoid(self.first.bias)[:, None]
    return self.last(F.linear(x.flatten(1), weight))
""",
    "halted": """
def forward(self, x):
    x, left = self.first(x.flatten(1)), 4
    while x.norm() > 1 and left:
        x, left = x * 0.7, left - 1
    return self.last(x)
""",
    "experts": """
def forward(self, x):
    x = self.first(x.flatten(1))
    chosen = x.topk(2).indices
    return self.last(torch.zeros_like(x).scatter(1, chosen, x.gather(1, chosen)))
""",
    "sampled": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x[:, torch.multinomial(x.softmax(1).mean(0), 6)])
""",
    "scaled in training": """
def forward(self, x):
    x = self.first(x.flatten(1))
    return self.last(x / math.sqrt(x.shape[-1]) if self.training else x)
""",
    "forgets": """
def forward(self, x):
    with torch.no_grad():
        noise = torch.empty_like(self.first.weight).normal_()
        self.first.weight.add_(noise, alpha=1e-3)
    return self.last(self.first(x.flatten(1)))
""",
    "numpy inside": """
def forward(self, x):
    x = self.first(x.flatten(1))
    order = np.argsort(x.detach().numpy().sum(0))
    return self.last(x[:, torch.from_numpy(order.copy())])
""",
    "memory": """
def forward(self, x):
    x = self.first(x.flatten(1))
    self.log = [*self.log[-2:], x.detach().mean(0)]
    return self.last(x - torch.stack(self.log).mean(0))
""",
    "in half": """
def forward(self, x):
    with torch.autocast("cpu", torch.bfloat16):
        x = self.first(x.flatten(1))
    return self.last(x.float())
""",
}
"""What a step does follows from the network, the batch and the generators."""

IMPURE = {
    "of the file": """
def forward(self, x):
    global CALLS
    CALLS += 1
    return self.last(self.first(x.flatten(1)) * CALLS)
""",
    "list of the file": """
def forward(self, x):
    SEEN.append(1)
    return self.last(self.first(x.flatten(1)) * len(SEEN))
""",
    "list of the class": """
tally = []

def forward(self, x):
    self.tally.append(1)
    return self.last(self.first(x.flatten(1)) * len(self.tally))
""",
    "default": """
def forward(self, x, seen=[]):
    seen.append(1)
    return self.last(self.first(x.flatten(1)) * len(seen))
""",
    "cell": """
def forward(self, x):
    return STEP(self, x)
""",
}
"""What a step does follows from how many the process has taken, too."""
