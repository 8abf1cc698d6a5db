"""Checks whether a network, its loss and its scores fit the examples, by trying them before a run begins.

So it is found out, too, how the outputs are read for labels."""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn

from roundweave.storage.errors import ModelError, failing_as, one_line
from roundweave.storage.rounds.numbers import COLUMNS
from roundweave.storage.values.tensors import dtype_name
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.examples import IGNORED, Examples, Tensors, single
from roundweave.tasks.data.partitions import Partitions
from roundweave.tasks.data.splits.split import LARGEST_SCORE_BATCH, SCORE_BATCH
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.scores import (
    AS_SHAPED,
    LOSSES,
    OWN_LOSS,
    UNKNOWN,
    LabelRule,
    call,
    check_merging,
    default_scores,
    metric_of,
    output_of,
    score_items,
    size_of,
    takes_labels,
    tensor_in,
    updated,
)
from roundweave.tasks.networks.trying.copies import check_apart, in_evaluation, tried_network
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.numerics.pinning import pinned
from roundweave.tasks.own_code.code import Code


def find_rule(
    objective: Objective, network: nn.Module, outputs: object, examples: Examples, description: Description
) -> LabelRule:
    """How a network's outputs for examples of this description are read for labels."""
    output, targets, rule = tensor_in(outputs), examples.targets, LabelRule(classes=description.target_classes)
    if output is None or not isinstance(targets, torch.Tensor):
        return rule
    if not description.labels:
        soft = objective.loss == "cross_entropy" and targets.ndim > 2 and output.shape == targets.shape
        return replace(rule, axis=_axis_of_shares(targets)) if soft else rule
    rule = replace(rule, axis=_class_axis(network, output, examples))
    if targets.ndim > 1:
        return _of_mean(objective, network, examples, rule) if objective.loss not in LOSSES else rule
    single = max(rule.classes - 1, int(targets.max())) <= 1 and output.numel() == targets.numel()
    return replace(rule, threshold=_threshold(objective, output, targets)) if single else rule


def _class_axis(network: nn.Module, output: torch.Tensor, examples: Examples) -> int | None:
    """The class axis of an output for labels; None if it has none."""
    shape, labels = tuple(output.shape), tuple(examples.targets.shape)
    last, second = shape[:-1] == labels, shape[:1] + shape[2:] == labels
    if last and second and len(shape) > 2:
        return _axis_that_stays(network, output, examples)
    return -1 if last else 1 if second else None


def _axis_that_stays(network: nn.Module, output: torch.Tensor, examples: Examples) -> int:
    """The class axis where there are as many classes as places: the one that stays if inputs have fewer places."""
    places = output.shape[1]

    def shortened(tensor: torch.Tensor, size: int, last: int) -> torch.Tensor:
        for axis in range(1, min(tensor.ndim, last)):
            tensor = tensor.narrow(axis, 0, size) if tensor.shape[axis] == places else tensor
        return tensor

    for size, last in itertools.product((places - 1, places // 2), (output.ndim, 2)):
        with suppress(Exception):  # some networks take inputs of one length only
            inputs = moved(examples.inputs, lambda tensor: shortened(tensor, size, last))  # noqa: B023 - used at once
            shape = output_of(call(network, inputs)).shape
            if len(shape) == output.ndim and (shape[1] == places) != (shape[-1] == places):
                return 1 if shape[1] == places else -1
    return UNKNOWN


def _axis_of_shares(targets: torch.Tensor) -> int:
    """The axis of targets (examples, *) along which they are the shares of classes."""
    last, second = (bool((targets.sum(axis) - 1).abs().max() < 1e-3) for axis in (-1, 1))
    return UNKNOWN if last and second else -1 if last else 1


def _threshold(objective: Objective, output: torch.Tensor, targets: torch.Tensor) -> float | None:
    """The output at which label 0 and label 1 have the same loss: 0 of logits, 0.5 of probabilities; else None."""

    def loss(value: float, label: int) -> float:
        return objective.value(torch.full_like(output, value), torch.full_like(targets, label)).item()

    for threshold in (0.0, 0.5):
        with suppress(Exception):  # a loss may take probabilities only
            level = math.isclose(loss(threshold, 0), loss(threshold, 1), rel_tol=1e-5)
            if level and loss(threshold + 0.25, 1) < loss(threshold + 0.25, 0):
                return threshold
    return None


def _of_mean(objective: Objective, network: nn.Module, examples: Examples, rule: LabelRule) -> LabelRule:
    """The rule with `shifted` and `by_label` as the loss of all examples and of each show them."""
    targets = examples.targets
    labels = targets.where(targets != IGNORED, targets.clamp(min=0))

    def loss(labels: torch.Tensor, rows: slice = slice(None)) -> float:
        inputs = moved(examples.inputs, lambda tensor: tensor[rows])
        return objective.loss_of(network, inputs, labels[rows]).item()

    def without(place: int) -> float:
        return loss(labels.index_fill(1, torch.tensor([place]), IGNORED))

    with suppress(Exception):  # a loss of one's own may not know of labels that are ignored
        every = loss(labels)
        shifted = labels.shape[1] > 1 and without(0) == every != without(labels.shape[1] - 1)
        rules = [replace(rule, shifted=shifted, by_label=by_label) for by_label in (True, False)]
        for left in (labels[0].numel() // 2, 1 + shifted):  # so many labels of the first example are left
            fewer = labels.clone()
            fewer.flatten(1)[0, left:] = IGNORED
            whole, each = loss(fewer), [loss(fewer, slice(row, row + 1)) for row in range(len(labels))]
            rules = [tried for tried in rules if _adds_up(tried, fewer, whole, each)]
        return rules[0] if rules else replace(rule, shifted=shifted, by_label=None)
    return replace(rule, by_label=False)


def _adds_up(rule: LabelRule, labels: torch.Tensor, whole: float, each: Sequence[float]) -> bool:
    """Whether the loss of all labels (examples, *) is the mean of that of each example as the rule counts them."""
    counts = [rule.counted(one[None]) for one in labels]
    # An example without labels that count has no mean.
    total = math.fsum(count * loss for count, loss in zip(counts, each, strict=True) if count)
    return math.isclose(total, whole * rule.counted(labels), rel_tol=1e-4)


MANY = 512
"""The number of examples to try a score on that needs more than two, such as an area under a curve."""

MOST_GATHERED = 2**28
"""The most bytes that may be gathered for a score: all outputs, or a metric's states of all batches."""


MOST_SCORED = 2**25
"""The most numbers that a network gives at once where it is scored; their logarithms take as much memory again."""


def check_fit(
    objective: Objective, partitions: Partitions, description: Description, partition: int, may_own: bool = False
) -> Objective:
    """Try an objective on two examples of a partition, and return it with its scores decided.

    If `may_own`, a network whose forward takes labels has the loss that it computes itself.

    Raises `ModelError` if the network, its loss or a given score does not fit. Default scores that do not fit are
    left out.
    """
    copied = objective.built
    check_apart(objective, network := objective.model.build(), copied)
    if may_own and takes_labels(network):
        objective = replace(objective, loss=OWN_LOSS)
    examples, more = partitions.sample(partition), functools.partial(partitions.sample, partition, spread=True)
    where = f"model {objective.model.name} on inputs of {_shapes(examples.inputs)}"
    advice = _advice(objective, examples)
    with failing_as(lambda error: ModelError(f"{where} fails with {one_line(error)}{advice}")):
        with in_evaluation(network), torch.no_grad(), pinned(0, threads=1, fill=True):
            outputs = objective.outputs(network, examples.inputs, examples.targets)
            rule = find_rule(objective, network, outputs, examples, description)
            objective = replace(objective, rule=rule)
            if misfit := _misfit(objective, outputs, examples.targets):
                raise ModelError(where + misfit + advice)
            padded = partitions.loading.collate is not None
            trial = Trial(network, outputs, examples.targets, more, description.held_out, padded, rule)
            if objective.scores is None:
                fitting = tuple(filter(trial.fits, default_scores(objective.loss, description, rule)))
                objective = replace(objective, scores=fitting)
            _check_names(objective)
            whole = tuple(name for name, judge in objective.judges.items() if trial.is_whole(name, judge))
        objective = replace(objective, whole=whole, score_batch=_score_batch(outputs, len(examples)))
        del trial, outputs  # they may be large
        with pinned(0, threads=1, fill=True):
            return tried_network(objective, network, examples)


def _score_batch(outputs: Any, examples: int) -> int:
    """The most examples that are scored at once, from the outputs for some: fewer where these are large."""
    output = tensor_in(outputs)
    each = 0 if output is None else output.numel() // examples
    return max(1, min(LARGEST_SCORE_BATCH, MOST_SCORED // max(1, each)))


def _check_names(objective: Objective) -> None:
    """Raise `ModelError` if two scores have the same name, or one that is another number's of each round."""
    scores = (score if isinstance(score, str) else score.name for score in objective.scores or ())
    names = ["loss", *COLUMNS, *scores]
    if twice := [name for name in names if names.count(name) > 1]:
        raise ModelError(f"a score has the name of another number of rounds, {twice[0]!r}; rename it")


def _shapes(inputs: Tensors) -> str:
    """The shape and dtype of inputs as text, or those of several by name."""
    if isinstance(inputs, torch.Tensor):
        return f"shape {tuple(inputs.shape)} {dtype_name(inputs.dtype)}"
    return ", ".join(f"{name} {tuple(tensor.shape)} {dtype_name(tensor.dtype)}" for name, tensor in inputs.items())


def _advice(objective: Objective, examples: Examples) -> str:
    """What to do if a network fails on examples whose types few networks take, as the end of a line."""
    inputs, targets, model = examples.inputs, examples.targets, objective.model.model
    if isinstance(targets, torch.Tensor) and targets.dtype == torch.bool:
        return "; give targets that are true or false as whole numbers, or as floats"
    if isinstance(targets, torch.Tensor) and not targets.is_floating_point() and targets.shape[1:] == (1,):
        return "; give labels without their second axis"
    whole = isinstance(inputs, torch.Tensor) and not inputs.is_floating_point()
    return "; give the inputs as floats" if whole and isinstance(model, str) and model != "gpt" else ""


def _misfit(objective: Objective, outputs: Any, targets: Tensors) -> str | None:
    """Why outputs do not fit targets (examples, *), as the end of a sentence that begins with the model's name."""
    axis, classes = objective.rule.axis, objective.rule.classes
    if objective.loss == "cross_entropy" and classes:
        outputs = output_of(outputs)
        if axis is None:
            wanted = (*targets.shape, classes)
            return (
                f" gives outputs of shape {tuple(outputs.shape)}, but one for each class of each label is {wanted}"
            )
        if axis != UNKNOWN and outputs.shape[axis] < classes:
            return f" gives {outputs.shape[axis]} outputs, but labels go up to {classes - 1}"
    if objective.loss == "cross_entropy" and not classes and targets.shape[1:] == (1,):
        return ": cross_entropy of a single share is always 0; give whole numbers as labels, or another loss"
    loss = objective.value(outputs, targets)
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        return ": the loss must be a single number, or one for each example"
    return None


@dataclass(frozen=True, eq=False)
class Trial:
    """A network's outputs for two examples and their targets; `more(n)` gives n examples if two are too few.

    `padded` says whether the user's function makes batches, whose examples may have other lengths in each.
    """

    network: torch.nn.Module
    outputs: Any
    targets: Tensors
    more: Callable[[int], Examples]
    held_out: int
    padded: bool = False
    rule: LabelRule = AS_SHAPED

    def fits(self, score: str) -> bool:
        """Whether a built-in score fits the outputs."""
        try:
            score_items(score, self.outputs, self.targets, self.rule)
        except ModelError:
            return False
        return True

    def is_whole(self, name: str, judge: str | Code) -> bool:
        """Whether a score or a loss gives a single number of all outputs at once.

        Raises `ModelError` if it does not fit the outputs, or would have to gather too many bytes of them.
        """
        if isinstance(judge, str):
            score_items(judge, self.outputs, self.targets, self.rule)
            return False
        with failing_as(lambda error: ModelError(f"score {judge.reference} fails with {one_line(error)}")):
            if metric_of(judge):
                self._check_metric(name, judge)
                return False
            if self._items(judge).ndim:
                return False
        if name == "loss" and (self.padded or not self._are_single):
            if self.padded and self.rule.by_label is None:
                raise ModelError(
                    "the loss is a mean over neither examples nor labels, as one with weights of classes, and of "
                    "padded batches it has no mean; give a number for each example"
                )
            return False  # its mean over batches is reported
        if not self._are_single:
            raise ModelError(
                f"{name} is one number of all outputs, and there are several tensors; give one each example"
            )
        other = "" if name == "loss" else ", use a metric of torchmetrics"
        self._check_size(
            f"{name} is one number of all outputs; those",
            output_of(self.outputs)[:1].nbytes * self.held_out,
            f"give a number for each example{other}",
        )
        return True

    def _items(self, judge: Code) -> torch.Tensor:
        # A function of all outputs may need more than two, such as one for each class.
        with suppress(Exception) if self._are_single else nullcontext():
            return score_items(judge, self.outputs, self.targets, self.rule)
        return score_items(judge, *self._many)

    @property
    def _are_single(self) -> bool:
        """Whether outputs and targets are one tensor each, so that those of all examples may be gathered."""
        return tensor_in(self.outputs) is not None and isinstance(self.targets, torch.Tensor)

    def _check_metric(self, name: str, judge: Code) -> None:
        outputs, targets = self._many
        check_merging(judge, outputs, single(targets, f"metric {name}"))
        batch = size_of(updated(judge, outputs[:SCORE_BATCH], targets[:SCORE_BATCH]))
        batches = math.ceil(self.held_out / SCORE_BATCH)
        self._check_size(
            f"{name} is a metric that keeps {batch / 1e6:.1f} MB of each {SCORE_BATCH} examples; those",
            batch * batches,
            "choose one that keeps sums",
        )

    def _check_size(self, what: str, size: int, advice: str) -> None:
        if size > MOST_GATHERED:
            raise ModelError(
                f"{what} of {self.held_out} held-out examples take {size / 1e9:.1f} GB, and at most "
                f"{MOST_GATHERED / 1e9:.1f} GB are gathered; {advice}, or hold out fewer examples"
            )

    @functools.cached_property
    def _many(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and targets of up to 512 examples, evenly spread over the partition."""
        size = output_of(self.outputs)[:1].nbytes
        examples = self.more(max(2, min(MANY, MOST_GATHERED // max(1, size))))
        batches = examples.slices(SCORE_BATCH)
        return torch.cat([output_of(call(self.network, batch.inputs)) for batch in batches]), examples.targets
