"""How good a network is on held-out examples: sums over partitions, and the score that they make."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import torch

from storage.rounds.commits import Score
from tasks.data.examples import Examples
from tasks.networks.objective import Objective
from tasks.networks.scores import score_items
from tasks.user_code import Code

SCORE_BATCH = 1000
"""Held-out examples scored at once; part of the arithmetic, so it is fixed."""


@dataclass(frozen=True)
class Tally:
    """Sums over a partition's held-out examples: of the loss, and by score its sum and the number of its items."""

    loss: float
    examples: int
    scores: Mapping[str, tuple[float, int]] = field(default_factory=dict)


def tally(objective: Objective, network: torch.nn.Module, held_out: Examples) -> Tally:
    """Sums of loss and scores over held-out inputs and targets (examples, *), in batches of a fixed size."""
    loss = 0.0
    sums: dict[str, tuple[float, int]] = {score_name(score): (0.0, 0) for score in objective.scores or ()}
    for first in range(0, len(held_out), SCORE_BATCH):
        inputs = held_out.inputs[first : first + SCORE_BATCH]
        targets = held_out.targets[first : first + SCORE_BATCH]
        outputs = network(inputs)
        loss += objective.value(outputs, targets).item() * len(inputs)
        for score in objective.scores or ():
            items = score_items(score, outputs, targets)
            total, count = sums[score_name(score)]
            sums[score_name(score)] = total + _sum(items), count + len(items)
    return Tally(loss, len(held_out), sums)


def score_name(score: str | Code) -> str:
    """What a score is called: a name of the table, or that of the user's function."""
    return score if isinstance(score, str) else score.name


def _sum(items: torch.Tensor) -> float:
    """The sum of items (items,), of whole numbers exact."""
    return items.to(torch.float64 if items.is_floating_point() else torch.int64).sum().item()


def score(tallies: Sequence[Tally]) -> Score | None:
    """The mean loss and scores, summed in the order of partitions; None where no partition has a loss."""
    tallies = [tally for tally in tallies if tally.examples and math.isfinite(tally.loss)]
    examples = sum(tally.examples for tally in tallies)
    if not examples:
        return None
    names = dict.fromkeys(name for tally in tallies for name in tally.scores)
    means = {name: _mean([tally.scores[name] for tally in tallies if name in tally.scores]) for name in names}
    known = {name: mean for name, mean in means.items() if math.isfinite(mean)}
    return Score(sum(tally.loss for tally in tallies) / examples, known, examples)


def _mean(sums: Sequence[tuple[float, int]]) -> float:
    count = sum(count for _, count in sums)
    return math.fsum(total for total, _ in sums) / count if count else math.nan
