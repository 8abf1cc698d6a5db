"""How good a network is on held-out examples: what each batch of them gives, and the score that they make.

The batches are the same whatever the partitions, and are put together in their order: so are the bits of a score.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from storage.errors import ModelError
from storage.rounds.commits import Score
from tasks.data.examples import Examples
from tasks.data.splits.held_out import SCORE_BATCH
from tasks.networks.losses import ITEMS
from tasks.networks.objective import Objective
from tasks.networks.scores import gives_items, metric_of, score_items, score_name
from tasks.numerics import pinned
from tasks.user_code import Code


@dataclass(frozen=True)
class Tally:
    """What a batch of held-out examples gives.

    `sums` has the sum and the number of the items of what is a mean, ``loss`` among them; `metrics` those of
    torchmetrics; `gathered` the outputs and targets where something is a function of all of them.
    """

    examples: int
    sums: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    metrics: Mapping[str, Any] = field(default_factory=dict)
    gathered: Examples | None = None


def tally(objective: Objective, network: torch.nn.Module, held_out: Examples) -> list[Tally]:
    """What each batch of held-out inputs and targets (examples, *) gives, in order."""
    tallies = []
    for first in range(0, len(held_out), SCORE_BATCH):
        inputs = held_out.inputs[first : first + SCORE_BATCH]
        targets = held_out.targets[first : first + SCORE_BATCH]
        tallies.append(_tally(objective, network(inputs), targets))
    return tallies


def _tally(objective: Objective, outputs: torch.Tensor, targets: torch.Tensor) -> Tally:
    sums, metrics, gathered = {}, {}, None
    for name, judge in _judges(objective).items():
        if metric := metric_of(judge):
            metric.update(outputs, targets)
            metrics[name] = metric
        elif name == "loss" and objective.averaged:
            sums[name] = objective.value(outputs, targets).item() * len(outputs), len(outputs)
        elif gives_items(judge, outputs, targets):
            known = ITEMS.get(judge) if isinstance(judge, str) else None
            items = known(outputs, targets) if known else score_items(judge, outputs, targets)
            sums[name] = _sum(items), len(items)
        else:
            gathered = Examples(outputs.clone(), targets.clone())  # a view would be sent with all it is of
    return Tally(len(outputs), sums, metrics, gathered)


def _judges(objective: Objective) -> dict[str, str | Code]:
    """The loss and the scores by name."""
    return {"loss": objective.loss} | {score_name(score): score for score in objective.scores or ()}


def _sum(items: torch.Tensor) -> float:
    """The sum of items (items,), of whole numbers exact."""
    return items.to(torch.float64 if items.is_floating_point() else torch.int64).sum().item()


def score(objective: Objective, tallies: Sequence[Tally], threads: int) -> Score | None:
    """The loss and scores of all batches in their order; None where no batch has a loss.

    A batch whose loss is no finite number is left out.
    """
    tallies = [each for each in tallies if math.isfinite(each.sums.get("loss", (0.0, 0))[0])]
    if not tallies:
        return None
    found = {name: _value(name, judge, tallies, threads) for name, judge in _judges(objective).items()}
    known = {name: value for name, value in found.items() if math.isfinite(value)}
    loss = known.pop("loss", None)
    return None if loss is None else Score(loss, known, sum(each.examples for each in tallies))


def _value(name: str, judge: Any, tallies: Sequence[Tally], threads: int) -> float:
    if all(name in each.sums for each in tallies):
        count = sum(each.sums[name][1] for each in tallies)
        return math.fsum(each.sums[name][0] for each in tallies) / count if count else math.nan
    if name in tallies[0].metrics:
        with pinned(0, threads):
            metric = copy.deepcopy(tallies[0].metrics[name])
            for each in tallies[1:]:
                metric.merge_state(each.metrics[name])
            return float(metric.compute())
    parts = [each.gathered for each in tallies if each.gathered and name not in each.sums]
    if len(parts) < len(tallies):
        raise ModelError(f"{name} gives one number for some examples, and one for each of others; give one kind")
    with pinned(0, threads), torch.no_grad():
        outputs, targets = (torch.cat([getattr(part, kind) for part in parts]) for kind in ("inputs", "targets"))
        return float(judge.load()(outputs, targets))
