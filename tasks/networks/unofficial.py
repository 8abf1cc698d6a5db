"""Everything that this project uses of torchmetrics without its documentation, as of torchmetrics 1.9.0."""

from __future__ import annotations

from typing import Any


def count_updates(metric: Any, updates: int) -> None:
    """Set the number of batches that a metric has seen, as merging states into it does not count them."""
    metric._update_count = updates
