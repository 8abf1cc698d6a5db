"""What is used of torchmetrics and is not in its documentation: seen in torchmetrics 1.9.0, all of it here."""

from __future__ import annotations

from typing import Any


def count_updates(metric: Any, updates: int) -> None:
    """Tell a metric how many batches it has seen: those of a state that is merged into it are not counted."""
    metric._update_count = updates
