"""Plain evaluations of the networks that are merged."""

from __future__ import annotations

import torch
from torch.nn import functional

from roundweave.storage.rounds.commits import Score
from roundweave.tasks.merging.gallery import Gallery

TENSORS = dict[str, torch.Tensor]


def held_out(gallery: Gallery) -> tuple[torch.Tensor, torch.Tensor]:
    parts = [gallery.partitions.load(0, block).held_out for block in range(gallery.partitions.split.partitions)]
    return torch.cat([part.inputs for part in parts]), torch.cat([part.targets for part in parts])


def by_hand(gallery: Gallery, logits: torch.Tensor) -> Score:
    _, targets = held_out(gallery)
    right = (logits.argmax(1) == targets).float().mean().item()
    return Score(functional.cross_entropy(logits, targets).item(), {"accuracy": right}, len(targets))


def mlp_outputs(state: TENSORS, inputs: torch.Tensor) -> torch.Tensor:
    hidden = (inputs @ state["fc1.weight"].T + state["fc1.bias"]).clamp_min(0)
    return hidden @ state["fc2.weight"].T + state["fc2.bias"]


def same_bits(one: TENSORS, other: TENSORS) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[name], other[name]) for name in one)
