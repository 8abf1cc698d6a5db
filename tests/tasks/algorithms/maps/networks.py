"""Networks that maps train, the plain loop of torch that trains them, and networks whose steps branch or draw."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import nn

from roundweave import Examples, batches
from roundweave.storage.values.tensors import Vectors, views
from roundweave.tasks.networks.objective import ModelSpec, Objective
from roundweave.tasks.own_code.code import find_code


def objective(model: str = "mlp", dtype: str = "float32") -> Objective:
    return Objective(ModelSpec(model, (1, 4, 4), 3, dtype, 0), "cross_entropy")


def objective_of(path: str, dtype: str = "float32") -> Objective:
    """That of the class Net in a user's file, with the loss of the class or the file's own."""
    return Objective(ModelSpec(find_code(f"{path}:Net"), (1, 4, 4), 3, dtype, 0), "cross_entropy")


def examples(count: int = 50, dtype: str = "float32") -> Examples:
    generator = torch.Generator().manual_seed(1)
    inputs = torch.randn(count, 1, 4, 4, generator=generator).to(getattr(torch, dtype))
    return Examples(inputs, torch.randint(0, 3, (count,), generator=generator))


def looped(
    what: Objective,
    part: Examples,
    optimizer: Callable[[list[nn.Parameter]], torch.optim.Optimizer],
    steps: int = 4,
    size: int | None = 16,
    seeds: Iterable[int] = (7,),
    clip: float | None = None,
    seen: Callable[[nn.Module, float], Any] = lambda network, loss: None,
) -> nn.Module:
    """The network after a loop as one writes it in torch: so many steps for each seed that orders the batches."""
    network = what.model.build()
    made = optimizer([p for p in network.parameters() if p.requires_grad])
    for seed in seeds:
        for batch in batches(part, size, steps, seed):
            made.zero_grad()
            loss = nn.functional.cross_entropy(network(batch.inputs), batch.targets)
            loss.backward()
            if clip:
                nn.utils.clip_grad_norm_(network.parameters(), clip)
            seen(network, loss.item())
            made.step()
    return network


def distance(what: Objective, start: Vectors, direction: Vectors, network: nn.Module) -> float:
    """The largest difference between a network and where a direction leads from the start."""
    found = views(what.layout.params, {name: vector - direction[name] for name, vector in start.items()})
    return max((found[n] - p.detach()).abs().max().item() for n, p in network.named_parameters() if n in found)


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
    def forward(self, x):
        return self.step(x.flatten(1))
"""


def file_of(name: str) -> str:
    """A file with the class Net of the table, which reads (examples, 1, 4, 4) and gives (examples, 3)."""
    *begun, step = PURE[name]
    init = "".join(f"        {line}\n" for line in begun)
    return (
        f"{HEAD}\nclass Net(Base):\n    def __init__(self):\n        super().__init__()\n{init}"
        f"    def step(self, x):\n        {step}\n"
    )


PLAIN = "return self.last(self.first(x))"
PURE: dict[str, tuple[str, ...]] = {
    "plain": ("return self.last(F.relu(self.first(x)))",),
    "buffer": (
        "x = self.first(x); self.mean.mul_(0.9).add_(0.1 * x.detach().mean(0)); return self.last(x - self.mean)",
    ),
    "unkept buffer": ("self.mask.mul_(0.5); return self.last(self.first(x) * self.mask)",),
    "parameter": (f"torch.no_grad()(self.first.weight.clamp_)(-0.1, 0.1); {PLAIN}",),
    "noise": ("return self.last(self.first(x + torch.randn(16)))",),
    "tied": (
        "self.again, self.back = nn.Linear(6, 16), nn.Linear(16, 6)",
        "self.again.weight, self.first.weight = nn.Parameter(torch.ones(16, 6)), self.back.weight",
        "return self.last(self.back(self.again(self.first(x))))",
    ),
    "one gradient": ("return x[:, :3] + self.last.bias + self.first.bias[:3] + self.last.weight[:, 0]",),
    "frozen": ("self.first.weight.requires_grad_(False)", PLAIN),
    "inputs": (f"x.mul_(0.99); {PLAIN}",),
    "counter": ("self.calls += 1; return self.last(self.first(x) * self.calls)",),
    "branch": ("x = self.first(x); return self.last(x if x.sum() > 0 else -x)",),
    "python": ("return self.last(self.first(x) * random.random())",),
    "own generator": (
        "self.source = torch.Generator().manual_seed(3)",
        "return self.last(self.first(x + torch.randn(16, generator=self.source)))",
    ),
    "hook": ("self.first.register_forward_hook(lambda module, inputs, output: output * 2)", PLAIN),
    "local losses": (
        "y = self.first(x); torch.is_grad_enabled() and y.mean().backward(); return self.last(y.detach())",
    ),
    "again": ("return self.last(checkpoint(self.first, x.requires_grad_(), use_reentrant=True))",),
    "gradient penalty": (
        "y = self.first(x.requires_grad_()).square(); "
        "return self.last(y) + torch.autograd.grad(y.sum(), x, create_graph=True)[0].square().sum()",
    ),
    "norm of weights": ("self.first = nn.utils.parametrizations.spectral_norm(self.first)", PLAIN),
    "batch norm": ("self.norm = nn.BatchNorm1d(6)", "return self.last(self.norm(self.first(x)))"),
    "hook after the gradient": (
        "self.first.weight.register_post_accumulate_grad_hook(lambda p: setattr(p, 'grad', p.grad.sign()))",
        PLAIN,
    ),
}
"""Lines of `__init__`, and that of a step, which follows from the network, the batch and the generators."""
