"""Finds out how a network's outputs are read for labels, and over what a loss of the user's is a mean."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import replace

import torch
from torch import nn

from roundweave.tasks.data.description import Description
from roundweave.tasks.data.examples import IGNORED, Examples, Tensors
from roundweave.tasks.networks.objective import Objective
from roundweave.tasks.networks.outputs import call, output_of, tensor_in
from roundweave.tasks.networks.scores import LOSSES, UNKNOWN, LabelRule
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.numerics.pinning import pinned


def find_rule(
    objective: Objective, network: nn.Module, outputs: object, examples: Examples, description: Description
) -> LabelRule:
    """Return how a network's outputs for examples of this description are read for labels."""
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
    """Return the class axis of an output for labels; None if it has none."""
    shape, labels = tuple(output.shape), tuple(examples.targets.shape)
    last, second = shape[:-1] == labels, shape[:1] + shape[2:] == labels
    if last and second and len(shape) > 2:
        return _axis_that_stays(network, output, examples)
    return -1 if last else 1 if second else None


def _axis_that_stays(network: nn.Module, output: torch.Tensor, examples: Examples) -> int:
    """The class axis if there are as many classes as places: the one that stays if inputs have fewer places."""
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
    """Return the axis of targets (examples, *) along which they are the shares of classes."""
    last, second = (bool((targets.sum(axis) - 1).abs().max() < 1e-3) for axis in (-1, 1))
    return UNKNOWN if last and second else -1 if last else 1


def _threshold(objective: Objective, output: torch.Tensor, targets: torch.Tensor) -> float | None:
    """Return the output at which label 0 and label 1 have the same loss: 0 of logits, 0.5 of probabilities.

    Else None.
    """

    def loss(value: float, label: int) -> float:
        return objective.value(torch.full_like(output, value), torch.full_like(targets, label)).item()

    for threshold in (0.0, 0.5):
        with suppress(Exception):  # a loss may take probabilities only
            level = math.isclose(loss(threshold, 0), loss(threshold, 1), rel_tol=1e-5)
            if level and loss(threshold + 0.25, 1) < loss(threshold + 0.25, 0):
                return threshold
    return None


def _of_mean(objective: Objective, network: nn.Module, examples: Examples, rule: LabelRule) -> LabelRule:
    """Return the rule with `shifted` and `by_label` as the loss of all examples and of each show them."""
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


TRIED, PARTED = 8, 3
"""The loss of so many examples is compared with that of the first few, and that of the rest."""

LABELINGS = 8
"""At most so many times they are given other labels, as a loss may weigh classes."""


def is_mean(objective: Objective, network: nn.Module, more: Callable[[int], Examples]) -> bool:
    """Tell whether a loss of examples is the mean of those of parts, whatever their labels are; True if it draws.

    `more` gives so many examples.
    """
    examples = more(TRIED)

    def loss(some: Examples, seed: int = 0) -> float:
        with pinned(seed, threads=1, fill=True):
            return objective.loss_of(network, some.inputs, some.targets).item()

    if len(examples) <= PARTED or loss(examples) != loss(examples, seed=1):
        return True
    # Some networks compute their loss in float32, whatever their dtype is.
    near = max(torch.finfo(dtype).eps for dtype in (torch.float32, getattr(torch, objective.model.dtype))) ** 0.5
    for targets in _labelled(examples.targets, objective.rule.classes):
        given = Examples(examples.inputs, targets)
        parts = [moved(given, lambda tensor: tensor[:PARTED]), moved(given, lambda tensor: tensor[PARTED:])]
        with suppress(Exception):  # a loss of one's own may not know all labels
            each = [objective.counted(part.targets) * loss(part) for part in parts]
            whole = objective.counted(targets) * loss(given)
            if math.isfinite(whole) and not math.isclose(math.fsum(each), whole, rel_tol=near, abs_tol=near**2):
                return False
    return True


def _labelled(targets: Tensors, classes: int) -> Iterator[Tensors]:
    """Targets (examples, *), and if they are labels, all classes in their places; those without one have none."""
    yield targets
    if not classes or not isinstance(targets, torch.Tensor) or targets.is_floating_point():
        return
    places = torch.arange(targets.numel()).reshape(targets.shape)
    for first in range(0, min(classes, LABELINGS * targets.numel()), targets.numel()):
        yield targets.where(targets == IGNORED, (first + places) % classes)


def _adds_up(rule: LabelRule, labels: torch.Tensor, whole: float, each: Sequence[float]) -> bool:
    """Whether the loss of all labels (examples, *) is the mean of that of each example as the rule counts them."""
    counts = [rule.counted(one[None]) for one in labels]
    # An example without labels that count has no mean.
    total = math.fsum(count * loss for count, loss in zip(counts, each, strict=True) if count)
    return math.isclose(total, whole * rule.counted(labels), rel_tol=1e-4)
