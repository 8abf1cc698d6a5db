"""The score of a network on held-out examples, from the tallies of their batches.

The batches do not depend on the partitions, and their tallies are added in order, so a score always has the same
bits.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch

from storage.errors import ModelError
from storage.rounds.commits import Score
from tasks.data.examples import Examples
from tasks.data.loading import AnyExamples
from tasks.data.splits.split import SCORE_BATCH
from tasks.networks.metrics import Kept, merged, metric_of, updated
from tasks.networks.objective import Objective
from tasks.networks.outputs import OWN_LOSS, call, output_of, own_loss
from tasks.networks.scores import score_items
from tasks.numerics.pinning import pinned
from tasks.user_code import Code


@dataclass(frozen=True)
class Tally:
    """What a batch of held-out examples adds to the score.

    `sums` has, for each score that is a mean (``loss`` is one), the sum and the number of its items. `metrics` has
    the states of torchmetrics' metrics. `gathered` are the outputs and targets, if some score is a function of
    those of all examples. `partition` is None, unless they are a partition's own examples, for a score of its own.
    """

    examples: int
    sums: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    metrics: Mapping[str, Kept] = field(default_factory=dict)
    gathered: Examples | None = None
    partition: int | None = None


def tally(
    objective: Objective, network: torch.nn.Module, held_out: AnyExamples, partition: int | None = None
) -> list[Tally]:
    """The tally of each batch of held-out examples, in order; their inputs and targets are (examples, *).

    They are a `partition`'s own, or if that is None, those of all.
    """
    tallies, device = [], next(network.parameters()).device
    for batch in held_out.slices(SCORE_BATCH):
        for part in batch.slices(objective.score_batch):
            there = part.on(lambda tensor: tensor.to(device))
            with objective.casting(device.type):
                tallies.append(replace(_tally(objective, network, there), partition=partition))
    return tallies


def _tally(objective: Objective, network: torch.nn.Module, batch: Examples) -> Tally:
    sums, metrics, targets = {}, {}, batch.targets
    if objective.loss == OWN_LOSS:
        outputs, loss = own_loss(network, batch.inputs, targets)
        sums["loss"] = loss.item() * len(batch), len(batch)
    else:
        outputs = call(network, batch.inputs)
    for name, judge in objective.judges.items():
        if isinstance(judge, Code) and metric_of(judge):
            metrics[name] = updated(judge, output_of(outputs).cpu(), targets.cpu())
        elif name not in objective.whole and judge != OWN_LOSS:
            items = score_items(judge, outputs, targets)
            if items.ndim or len(batch) == 1:
                sums[name] = _sum(items), items.numel()
            elif name == "loss":
                sums[name] = items.item() * len(batch), len(batch)
            else:
                raise ModelError(f"{name} gives a number for each of some examples, and one for all of others")
    # Copies, because a view would be sent together with the whole tensor that it belongs to.
    gathered = Examples(output_of(outputs).cpu().clone(), targets.cpu().clone()) if objective.whole else None
    return Tally(len(batch), sums, metrics, gathered)


def _sum(items: torch.Tensor) -> float:
    """The sum of items, (items,); it is exact for integers."""
    return items.to(torch.float64 if items.is_floating_point() else torch.int64).sum().item()


def score(objective: Objective, tallies: Sequence[Tally], threads: int) -> Score | None:
    """The loss and scores of all batches, from their tallies in order; None if no batch has a finite loss.

    A batch whose loss is not finite is left out.
    """
    tallies = [tally for tally in tallies if _has_loss(tally)]
    if not tallies:
        return None
    values = {name: _mean([tally.sums[name] for tally in tallies]) for name in tallies[0].sums}
    if tallies[0].metrics or tallies[0].gathered:
        with pinned(0, threads), torch.no_grad():
            values |= _of_all(objective, tallies)
    known = {name: values[name] for name in objective.judges if math.isfinite(values[name])}
    loss = known.pop("loss", None)
    return None if loss is None else Score(loss, known, sum(tally.examples for tally in tallies))


WORST = 0.1
"""The share of partitions whose scores are the worst ones: those with the highest losses."""


def scores_of_partitions(
    objective: Objective, tallies: Sequence[Tally], threads: int
) -> tuple[dict[int, Mapping[str, float]], dict[str, float]]:
    """The scores of partitions on their own examples, and how unequal they are.

    That is of the loss and of each score: the mean over the worst tenth of the partitions, and the standard
    deviation over all, by which Li et al. 2020 (q-FFL), section 4, measure fairness.
    """
    own: dict[int, list[Tally]] = {}
    for each in tallies:
        if each.partition is not None:
            own.setdefault(each.partition, []).append(each)
    scored = {partition: score(objective, of, threads) for partition, of in sorted(own.items())}
    rows = {p: {"loss": s.loss, **s.values} for p, s in scored.items() if s is not None}
    ordered = sorted(rows.values(), key=lambda row: -row["loss"])
    worst = ordered[: math.ceil(WORST * len(ordered))]
    summary: dict[str, float] = {}
    for name in dict.fromkeys(name for row in ordered for name in row):
        values, worst_values = ([row[name] for row in of if name in row] for of in (ordered, worst))
        summary |= {f"worst_{name}": statistics.fmean(worst_values)} if worst_values else {}
        summary[f"spread_{name}"] = statistics.pstdev(values)
    return {p: {f"own_{name}": value for name, value in row.items()} for p, row in rows.items()}, summary


def _has_loss(tally: Tally) -> bool:
    if "loss" in tally.sums:
        return math.isfinite(tally.sums["loss"][0])
    gathered = tally.gathered
    return gathered is not None and all(
        bool(part.isfinite().all()) for part in (gathered.inputs, gathered.targets)
    )


def _of_all(objective: Objective, tallies: Sequence[Tally]) -> dict[str, float]:
    """The scores that are no means: torchmetrics' metrics, and functions of the outputs for all examples."""
    judges = objective.judges
    values = {
        name: merged(judge, [tally.metrics[name] for tally in tallies])
        for name, judge in judges.items()
        if isinstance(judge, Code) and name in tallies[0].metrics
    }
    parts = [tally.gathered for tally in tallies if tally.gathered]
    if parts:
        outputs, targets = _joined([p.inputs for p in parts]), _joined([p.targets for p in parts])
        scored = {name: score_items(judges[name], outputs, targets) for name in objective.whole}
        values |= {name: items.to(torch.float64).mean().item() for name, items in scored.items()}
    return values


def _joined(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """The tensors (example, *) of all batches as one; raises `ModelError` if their examples have other shapes."""
    if len({tensor.shape[1:] for tensor in tensors}) > 1:
        raise ModelError(
            "a score is one number of all outputs, and batches have outputs or targets of other lengths; give a "
            "number for each example, or pad all examples to one length"
        )
    return torch.cat([*tensors])


def _mean(sums: Sequence[tuple[float, int]]) -> float:
    count = sum(count for _, count in sums)
    return math.fsum(total for total, _ in sums) / count if count else math.nan
