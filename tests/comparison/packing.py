"""Plain loops: directions that are sent in fewer bytes, and what partitions have not sent yet."""

from __future__ import annotations

import math
from typing import Any

import torch

from tests.comparison.training import Named, Update, minus

EXACT_ENOUGH = ("bf16", "int8")
"""What is lost by these, which round, is not sent later."""


def packed(kind: str, update: Update, partition: int, seed: int, unsent: dict[int, Named]) -> Update:
    """The update as it arrives; `unsent` has what partitions have not sent yet."""
    left = unsent.get(partition, {})
    total = {name: d + left[name] if left else d for name, d in update.direction.items()}
    update.direction = sent(kind, total, seed)
    if kind not in EXACT_ENOUGH:
        unsent[partition] = minus(total, update.direction)
    return update


def sent(kind: str, direction: Named, seed: int) -> Named:
    """What arrives of a direction: of all numbers as one vector, or of each tensor."""
    name, *numbers = kind.split(":")
    if not name.endswith("_k"):
        how: Any = {"bf16": bf16, "int8": int8, "sign": sign, "powersgd": powersgd}[name]
        return {k: how(d, torch.Generator().manual_seed(seed), *map(int, numbers)) for k, d in direction.items()}
    whole = torch.cat([d.flatten() for d in direction.values()])
    count = max(1, round(float(numbers[0]) * len(whole)))
    drawn = torch.randperm(len(whole), generator=torch.Generator().manual_seed(seed))
    places = whole.abs().argsort(descending=True) if name == "top_k" else drawn
    kept = torch.zeros_like(whole).index_copy(0, places[:count], whole[places[:count]])
    parts = kept.split([d.numel() for d in direction.values()])
    return {k: part.view_as(d) for (k, d), part in zip(direction.items(), parts, strict=True)}


def bf16(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return values.bfloat16().double()


def int8(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    """One of the two multiples around each value of the least power of two with at most 127 of them, drawn."""
    largest = values.abs().max().item()
    power = 2.0 ** math.ceil(math.log2(largest / 127)) if largest else 1.0
    below = (values / power).floor()
    above = torch.rand(values.numel(), dtype=values.dtype, generator=draw).view_as(values) < values / power - below
    return (below + above) * power


def sign(values: torch.Tensor, draw: torch.Generator) -> torch.Tensor:
    return values.abs().mean() * torch.where(values < 0, -1.0, 1.0).double()


def powersgd(values: torch.Tensor, draw: torch.Generator, rank: int) -> torch.Tensor:
    """P P' M, with P an orthonormal basis of M Q, and Q drawn; what has no fewer numbers so is sent whole."""
    matrix = values.reshape(len(values) if values.ndim > 1 else 1, -1)
    if rank * sum(matrix.shape) >= values.numel():
        return values
    start = torch.randn(matrix.shape[1], rank, dtype=values.dtype, generator=draw)
    left = torch.linalg.qr(matrix @ start).Q
    return (left @ (left.T @ matrix)).view_as(values)
