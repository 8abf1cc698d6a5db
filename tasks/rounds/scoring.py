"""How good a network is on held-out examples: sums over partitions, and the score that they make."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch

from storage.rounds.commits import Score
from tasks.data.examples import Examples, is_label
from tasks.networks.objective import Objective

SCORE_BATCH = 1000
"""Held-out examples scored at once; part of the arithmetic, so it is fixed."""


@dataclass(frozen=True)
class Tally:
    """Sums over a partition's held-out examples; `right` is None where outputs are no classes."""

    loss: float
    right: int | None
    examples: int


def tally(objective: Objective, network: torch.nn.Module, held_out: Examples) -> Tally:
    """Sums of loss and of right classes over held-out examples, in batches of a fixed size."""
    loss, right = 0.0, 0
    classes = False
    for first in range(0, len(held_out), SCORE_BATCH):
        inputs = held_out.inputs[first : first + SCORE_BATCH]
        targets = held_out.targets[first : first + SCORE_BATCH]
        outputs = network(inputs)
        loss += objective.value(outputs, targets).item() * len(inputs)
        classes = outputs.ndim == 2 and is_label(targets)
        right += int((outputs.argmax(1) == targets).sum()) if classes else 0
    return Tally(loss, right if classes else None, len(held_out))


def score(tallies: Sequence[Tally]) -> Score | None:
    """Mean loss and accuracy, summed in the order of partitions; None where no partition has a loss."""
    tallies = [tally for tally in tallies if tally.examples and math.isfinite(tally.loss)]
    examples = sum(tally.examples for tally in tallies)
    if not examples:
        return None
    counts = [tally.right for tally in tallies if tally.right is not None]
    loss = sum(tally.loss for tally in tallies) / examples
    return Score(loss, {"accuracy": sum(counts) / examples} if counts else {}, examples)
