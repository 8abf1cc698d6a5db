"""Read a whole checkpoint."""

from __future__ import annotations

import torch

from roundweave.storage.places.base import Where
from roundweave.storage.runs.opening import open_checkpoint


def read_checkpoint(place: Where, root: Where | None = None) -> dict[str, torch.Tensor]:
    """All named tensors of a checkpoint, as a module's `load_state_dict` takes them."""
    return dict(open_checkpoint(place, root))
