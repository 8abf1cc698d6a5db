"""The dtypes in which vectors are summed."""

from __future__ import annotations

import torch


def accumulator(dtype: str) -> torch.dtype:
    """The type in which vectors of a dtype are summed: float32, except for float64."""
    return torch.float64 if dtype == "float64" else torch.float32


def is_float(dtype: str) -> bool:
    """Whether a dtype, such as ``bfloat16``, is a floating-point type."""
    return bool(getattr(torch, dtype).is_floating_point)
