"""The score of a network on held-out examples, from the tallies of their batches.

The batches do not depend on the partitions. Their tallies are added in order, so a score always has the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from roundweave.storage.errors import ModelError
from roundweave.storage.rounds.commits import Score
from roundweave.storage.values.digests import tensor_digest
from roundweave.tasks.data.examples import Examples, Tensors, first_tensor
from roundweave.tasks.data.loading import AnyExamples, score_batch
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.outputs import each_tensor, joined, output_of, tensor_in
from roundweave.tasks.networks.scores import Kept, items_examples, merged, metric_of, score_items, updated
from roundweave.tasks.numerics.pinning import derive_seed, pinned, seed_generators
from roundweave.tasks.own_code.code import Code, WithCode


@dataclass(frozen=True)
class Tally(WithCode):
    """The contribution of a batch of held-out examples to the score.

    `sums` has, for each score that is a mean (``loss`` is one), the sum and the number of its finite items.
    `left_out` is the number of examples with an item that is not finite. `metrics` has the states of torchmetrics'
    metrics. `gathered` are the outputs and targets, if some score is a function of those of all examples. `scorer`
    is the prefix of its scorer, and `partition` is the partition of the examples. `code` is the user's code that
    may define classes of outputs.
    """

    examples: int
    sums: Mapping[str, tuple[float, int]] = field(default_factory=dict)
    metrics: Mapping[str, Kept] = field(default_factory=dict)
    gathered: tuple[Any, ...] = ()
    scorer: str = ""
    partition: int = 0
    left_out: int = 0
    code: tuple[Code, ...] = ()


def gathering(objective: Objective) -> tuple[str, ...]:
    """Return the names of the scores, or the loss, whose tallies have outputs and targets of examples."""
    metrics = {name: metric_of(judge) for name, judge in objective.judges.items()}
    states = {name: metric.metric_state.values() for name, metric in metrics.items() if metric is not None}
    return (*objective.whole, *(name for name, kept in states.items() if any(isinstance(s, list) for s in kept)))


def tally(
    objective: Objective,
    network: torch.nn.Module,
    held_out: AnyExamples,
    scorer: str = "",
    partition: int = 0,
) -> list[Tally]:
    """Return the tally of each batch of a partition's examples for a scorer, in order.

    Their inputs and targets are ``(example, *)``.
    """
    if not len(held_out):  # most have none if there are more scoring partitions than batches
        return []
    tallies, device = [], next(network.parameters()).device
    for batch in held_out.slices(score_batch(held_out)):
        for part in batch.slices(objective.score_batch):
            # Draws follow from the examples, and not from the scoring process or earlier batches.
            seed_generators(derive_seed("score", tensor_digest("", first_tensor(part.inputs)[:1].cpu())))
            there = part.on(lambda tensor: tensor.to(device))
            with objective.casting(device.type):
                each = _tally(objective, network, there)
                tallies.append(replace(each, scorer=scorer, partition=partition))
    return tallies


def _tally(objective: Objective, network: torch.nn.Module, batch: Examples) -> Tally:
    """Return the tally of a batch. Examples for which the network gives NaN are left out of all scores."""
    outputs, targets = objective.outputs(network, batch.inputs, batch.targets), batch.targets
    output = tensor_in(outputs)
    if output is not None and output.sum().isnan() and (bad := output.isnan().flatten(1).any(1)).any():
        rest = Tally(0) if bad.all() else _tally(objective, network, batch.on(lambda tensor: tensor[~bad]))
        return replace(rest, examples=len(batch), left_out=rest.left_out + int(bad.sum()))
    sums, metrics, unsound = {}, {}, set[int]()
    for name, judge in objective.judges.items():
        if isinstance(judge, Code) and metric_of(judge):
            metrics[name] = updated(judge, output_of(outputs).cpu().clone(), targets.cpu().clone())
        elif name not in objective.whole:
            items = score_items(judge, outputs, targets, objective.rule)
            if items.ndim or (len(batch) == 1 and name != "loss"):
                sums[name] = _sum_of_sound(objective, judge, items.reshape(-1), targets, unsound)
            elif name == "loss":
                sums[name] = _sum_of_mean(objective, network, items.item(), batch, unsound)
            else:
                raise ModelError(f"{name} gives a number for each of some examples, and one for all of others")
    if not objective.whole:
        return Tally(len(batch), sums, metrics, left_out=len(unsound))
    # Copies, because a view would be sent with its whole tensor.
    gathered = tuple(each_tensor(lambda tensor: tensor.cpu().clone(), each) for each in (outputs, targets))
    codes = tuple(each for each in (objective.model.model, *objective.judges.values()) if isinstance(each, Code))
    return Tally(len(batch), sums, metrics, gathered, left_out=len(unsound), code=codes)


def _sum_of_sound(
    objective: Objective, judge: str | Code, items: torch.Tensor, targets: Tensors, unsound: set[int]
) -> tuple[float, int]:
    """Return the sum and the number of the finite items of (item,). `unsound` gets the examples of the others."""
    sound = items.isfinite()
    if not sound.all():
        unsound.update(items_examples(judge, items, targets, objective.rule)[~sound].tolist())
        items = items[sound]
    wide = items.to(torch.float64 if items.is_floating_point() else torch.int64)  # the sum of integers is exact
    return wide.sum().item(), len(items)


def _sum_of_mean(
    objective: Objective, network: torch.nn.Module, mean: float, batch: Examples, unsound: set[int], first: int = 0
) -> tuple[float, int]:
    """Return the sum and the number behind a batch's mean loss, without examples that make it infinite or NaN.

    `unsound` gets the numbers of these examples, which are counted from `first`.
    """
    count = objective.counted(batch.targets)
    if math.isfinite(mean) or not count:
        return (mean * count, count) if count else (0.0, 0)
    if len(batch) == 1:
        unsound.add(first)
        return 0.0, 0
    each = [
        _sum_of_mean(
            objective, network, objective.loss_of(network, one.inputs, one.targets).item(), one, unsound, row
        )
        for row, one in enumerate(batch.slices(1))
    ]
    return math.fsum(total for total, _ in each), sum(count for _, count in each)


def score(objective: Objective, tallies: Sequence[Tally], threads: int) -> Score | None:
    """Return the loss and scores of all batches, from their tallies in order; None if there is none.

    They are those of the finite items. The loss is NaN if no item is finite.
    """
    judged = [tally for tally in tallies if tally.sums or tally.metrics or tally.gathered]
    if not judged:
        return None
    values = {name: _mean([tally.sums[name] for tally in judged]) for name in judged[0].sums}
    if judged[0].metrics or judged[0].gathered:
        with pinned(0, threads), torch.no_grad():
            values |= _of_all(objective, judged)
    for name in [name for name, judge in objective.judges.items() if judge == "perplexity"]:
        values[name] = torch.tensor(values[name], dtype=torch.float64).exp().item()  # it may be infinite
    known = {name: values[name] for name in objective.judges if math.isfinite(values[name])}
    if not known:
        return None
    examples, left_out = (sum(getattr(each, name) for each in tallies) for name in ("examples", "left_out"))
    return Score(known.pop("loss", math.nan), known, examples - left_out, left_out)


def _of_all(objective: Objective, tallies: Sequence[Tally]) -> dict[str, float]:
    """Return the scores that are no means: torchmetrics' metrics, and functions of all outputs."""
    judges = objective.judges
    values = {
        name: merged(judge, [tally.metrics[name] for tally in tallies])
        for name, judge in judges.items()
        if isinstance(judge, Code) and name in tallies[0].metrics
    }
    parts = [tally.gathered for tally in tallies if tally.gathered]
    if parts:
        outputs, targets = (joined(each) for each in zip(*parts, strict=True))
        scored = {name: score_items(judges[name], outputs, targets) for name in objective.whole}
        values |= {name: items.to(torch.float64).mean().item() for name, items in scored.items()}
    return values


def _mean(sums: Sequence[tuple[float, int]]) -> float:
    count = sum(count for _, count in sums)
    return math.fsum(total for total, _ in sums) / count if count else math.nan
