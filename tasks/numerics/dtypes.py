"""The dtypes in which vectors are summed."""

from __future__ import annotations

import torch

ACCUMULATORS = {"float64": torch.float64}
"""The types in which vectors are summed, by their dtype; float32 for all other dtypes."""


def accumulator(dtype: str) -> torch.dtype:
    """The type in which vectors of a dtype are summed."""
    return ACCUMULATORS.get(dtype, torch.float32)


def is_float(dtype: str) -> bool:
    """Whether a dtype, such as ``bfloat16``, is a floating-point type."""
    return bool(getattr(torch, dtype).is_floating_point)
