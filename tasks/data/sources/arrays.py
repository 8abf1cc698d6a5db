"""From arrays in any form to checked examples."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import psutil
import torch

from storage.errors import DataError
from tasks.data.examples import Examples

PIXELS = (255.0, 0.0, 1.0)
"""Divisor, mean and deviation that bring bytes to 0 to 1."""


def examples_of(inputs: Any, targets: Any, name: str) -> Examples:
    """Inputs (examples, *) and targets (examples, *) as tensors; raises `DataError` where they are no arrays."""
    examples = Examples(tensor_of(inputs, name), tensor_of(targets, name))
    if not len(examples.inputs) or len(examples.inputs) != len(examples.targets):
        raise DataError(f"{name} gives {len(examples.inputs)} inputs and {len(examples.targets)} targets")
    return examples


def tensor_of(value: Any, name: str) -> torch.Tensor:
    """An array in any form as a contiguous tensor (examples, *); raises `DataError`."""
    try:
        tensor = value.detach() if isinstance(value, torch.Tensor) else torch.from_numpy(np.array(value))
    except (TypeError, ValueError) as error:
        raise DataError(f"{name} gives a {type(value).__name__} that is no array: {error}") from error
    if tensor.ndim == 0:
        raise DataError(f"{name} gives a single number where an array of examples belongs")
    return tensor.contiguous()


def check_memory(file: str | Path, size: int) -> None:
    """Raise `DataError` where a file holds more bytes than there is memory, before any is taken."""
    free = psutil.virtual_memory().available
    if size > free:
        raise DataError(f"{file} holds {size / 1e9:.1f} GB, and {free / 1e9:.1f} GB of memory are free")


def pixel_scaling(inputs: torch.Tensor) -> tuple[float, float, float] | None:
    """The scaling of bytes (examples, height, width) or with more dimensions, which are pixels; else None."""
    return PIXELS if inputs.dtype == torch.uint8 and inputs.ndim > 2 else None
