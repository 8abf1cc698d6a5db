"""Nothing fails silently: an update that must not be averaged is refused, by name and with the reason."""

from __future__ import annotations

import torch

from storage.errors import ShapeMismatch
from storage.records import Layout, Specs, Update, Vectors, views

MISSHAPEN = "misshapen"
"""What the reason says of an update that does not fit the store."""


def fault(layout: Layout, update: Update) -> str | None:
    """Why an update must be refused: misshapen, non-finite, or of no positive weight; None if sound."""
    if not isinstance(update.weight, int) or update.weight < 1:
        return f"weight {update.weight!r} is no positive integer"
    groups: dict[str, tuple[Specs, Vectors]] = {
        "direction": (layout.params, update.direction),
        "buffers": (layout.buffers, update.buffers),
        **{f"extras/{name}": (layout.params, vectors) for name, vectors in update.extras.items()},
        **{f"carry/{slot}": (layout.params, vectors) for slot, vectors in update.carry.items()},
    }
    return next((reason for name, group in groups.items() if (reason := _group_fault(name, *group))), None)


def _group_fault(group: str, specs: Specs, vectors: Vectors) -> str | None:
    try:
        named = views(specs, vectors)
    except ShapeMismatch as error:
        return f"{group} is {MISSHAPEN}: {error}"
    if any(vector.dtype != getattr(torch, name) for name, vector in vectors.items()):
        return f"{group} is {MISSHAPEN}: {[str(v.dtype) for v in vectors.values()]} under {list(vectors)}"
    # One pass over each vector; names are looked for only where it finds something.
    if all(bool(torch.isfinite(vector).all()) for vector in vectors.values()):
        return None
    for name, tensor in named.items():
        bad = int((~torch.isfinite(tensor)).sum())
        if bad:
            return f"{group} of {name} has {bad} non-finite of {tensor.numel()} numbers"
    return None
