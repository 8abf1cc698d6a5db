"""The table of networks, and what several of them are made of."""

from __future__ import annotations

import zlib
from collections.abc import Callable

import torch
from torch import Tensor, nn

Member = tuple[nn.Module, tuple[Tensor, ...]]

ZOO: dict[str, Callable[[], Member]] = {}


def member(build: Callable[[], Member]) -> Callable[[], Member]:
    """Enter a builder into the zoo under its name."""
    ZOO[build.__name__] = seeded(build, build.__name__, 0.1, vectors_only=True)
    return build


def seeded(
    build: Callable[[], Member], name: str, amount: float, vectors_only: bool = False
) -> Callable[[], Member]:
    """A builder that is seeded by a name and gives a network in eval mode, away from its initial values."""

    def built() -> Member:
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(zlib.crc32(name.encode()))
            model, inputs = build()
            leave_initial_values(model, amount, vectors_only)
        return model.eval(), inputs

    return built


def leave_initial_values(model: nn.Module, amount: float, vectors_only: bool = False) -> None:
    """Move parameters, or only those of one axis, and running statistics away from what modules begin with.

    Scales of one and shifts of zero would hide a unit that was moved without them.
    """
    with torch.no_grad():
        for parameter in model.parameters():
            if parameter.ndim == 1 or not vectors_only:
                parameter.add_(amount * torch.randn_like(parameter))
        for name, buffer in model.named_buffers():
            if name.endswith("running_mean"):
                buffer.normal_(std=0.2)
            elif name.endswith("running_var"):
                buffer.uniform_(0.5, 1.5)


class Residual(nn.Module):
    def __init__(self, *layers: nn.Module):
        super().__init__()
        self.branch = nn.Sequential(*layers)

    def forward(self, x: Tensor) -> Tensor:
        return x + self.branch(x)


def conv_norm(inputs: int, outputs: int, kernel: int = 3, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(outputs))
