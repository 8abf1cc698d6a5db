"""Operations that mix places along an axis: units beside it keep one order at all of them."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.nn import functional

MIXED: dict[str, Callable[[Tensor], Tensor]] = {
    "roll": lambda v: v.roll(1, -1),
    "flip": lambda v: v.flip(-1),
    "sort": lambda v: v.sort(-1).values,
    "cumsum": lambda v: v.cumsum(-1),
    "diff": lambda v: v.diff(dim=-1, append=v[..., :1]),
    "repeat": lambda v: v.repeat(1, 1, 2)[..., ::2],
    "index": lambda v: v[..., list(range(v.shape[-1]))[::-1]],
    "index_select": lambda v: v.index_select(-1, torch.arange(v.shape[-1]).flip(0)),
    "gather": lambda v: v.gather(-1, torch.arange(v.shape[-1]).flip(0).expand_as(v)),
    "shifting_pad": lambda v: functional.pad(v, (1, -1)),
    "circular_pad": lambda v: functional.pad(v, (1, 1), mode="circular")[..., : v.shape[-1]],
    "average_pool": lambda v: functional.avg_pool1d(v, 3, 1, 1),
    "max_pool": lambda v: functional.max_pool1d(v, 3, 1, 1),
    "convolution": lambda v: functional.conv1d(v, torch.ones(1, v.shape[1], 3, dtype=v.dtype), padding=1),
    "interpolate": lambda v: functional.interpolate(v, scale_factor=2.0, mode="linear")
    .unflatten(-1, (2, -1)).sum(-2),
    "unfold": lambda v: functional.unfold(v[:, :, None], (1, 3), padding=(0, 1)).unflatten(1, (-1, 3)).sum(2),
    "pixel_shuffle": lambda v: functional.pixel_shuffle(v.repeat_interleave(4, 1)[:, :, None], 2)
    .unflatten(3, (2, -1)).sum((2, 3)),
    "pixel_unshuffle": lambda v: functional.pixel_unshuffle(v.repeat(1, 1, 2)[:, :, None].expand(-1, -1, 2, -1), 2)
    .unflatten(1, (-1, 4)).sum((2, 3)),
}  # fmt: skip
"""On values of three axes, along the last, which keeps its length."""
