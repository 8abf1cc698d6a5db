"""Losses, and scores, which say how good outputs are. The kind of a score follows from what it returns.

If it gives a number for each scored item, the mean is reported. If it gives a single number, it is a function of
all outputs, which are gathered for it. A metric of torchmetrics is updated and merged by its own rules.
Outputs are a tensor, or an object with logits and a loss, as models of Hugging Face give.
"""

from __future__ import annotations

import copy
import inspect
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn import functional

from roundweave.storage.errors import ModelError, failing_as, one_line
from roundweave.tasks.data.description import Description
from roundweave.tasks.data.examples import IGNORED, Tensors, are_labels, are_scalar_labels, first_tensor
from roundweave.tasks.networks.outputs import each_tensor, member, output_of
from roundweave.tasks.numerics.devices import moved
from roundweave.tasks.own_code.code import Code

OWN_LOSS = "model"
"""The name of the loss that the network itself computes, from the keyword argument `labels`."""


def takes_labels(network: nn.Module) -> bool:
    """Whether a network computes a loss of its own from `labels`, as models of Hugging Face do."""
    try:
        return "labels" in inspect.signature(network.forward).parameters
    except ValueError:  # a traced network has no signature
        return False


def loss_in(given: Any) -> torch.Tensor:
    """The loss in what a network gives for inputs and labels, (); raises `ModelError` without one."""
    loss = member(given, "loss")
    if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
        raise ModelError("the network gives no loss for labels; name one with --loss")
    return loss.reshape(())


UNKNOWN = 0
"""Stands for a class axis that may be either, as there are as many classes as places."""


@dataclass(frozen=True)
class LabelRule:
    """How outputs are read for labels, found out once for all batches of a network by `find_rule`.

    `axis` is that of classes, 1 or -1; None: as their shape says. Where there is one output for each label, above
    `threshold` it stands for label 1. If `shifted`, the output of a place is for the label of the next one. If
    `by_label`, a loss of one's own is a mean over labels that are not `IGNORED`, else over examples; None: over
    neither. There are `classes`, or 0 if targets are no labels or it is not known.
    """

    axis: int | None = None
    threshold: float | None = None
    shifted: bool = False
    by_label: bool | None = False
    classes: int = 0

    def __call__(self, outputs: torch.Tensor, targets: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Outputs and targets (examples, *) as those in `LABELLED` read them; raises `ModelError`."""
        if self.axis == UNKNOWN:
            raise ModelError(
                f"outputs of shape {tuple(outputs.shape)} have as many classes as places, and either axis may be "
                "that of classes; give a loss and scores of your own, or inputs of another length"
            )
        if targets.is_floating_point():
            last = self.axis == -1
            return (outputs.flatten(0, -2), targets.flatten(0, -2)) if last else (outputs, targets)
        if self.threshold is not None:
            outputs = outputs.reshape(len(targets), 1)
            outputs = torch.cat([torch.full_like(outputs, self.threshold), outputs], 1)
        if self.axis == 1 and class_axis(outputs, targets) == -1:
            outputs = outputs.movedim(1, -1)
        axis = class_axis(outputs, targets)
        if axis is not None and 1 < outputs.shape[axis] < self.classes:
            raise ModelError(f"outputs of shape {tuple(outputs.shape)} are too few for {self.classes} classes")
        return outputs[:, :-1] if self.shifted else outputs, self.labels(targets)

    def labels(self, targets: torch.Tensor) -> torch.Tensor:
        """The labels (examples, *) that outputs are for."""
        return targets[:, 1:] if self.shifted else targets

    def counted(self, targets: Tensors) -> int:
        """The number of items of targets (examples, *) over which a loss of the user's own is a mean."""
        if not self.by_label:
            return len(first_tensor(targets))
        return int((self.labels(targets) != IGNORED).sum())


NEITHER = "the loss is a mean over neither examples nor labels, as one with weights of classes"
"""What is said where `LabelRule.by_label` is None, and a mean is needed."""

AS_SHAPED = LabelRule()

LABELLED = ("cross_entropy", "accuracy", "top5", "token_accuracy", "perplexity")
"""The built-in loss and scores that compare outputs with labels."""

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of outputs and targets, both (examples, *).

It gives one number, or one for each example, (examples,).
"""


def mean_squared_error(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Mean squared error over examples and outputs.

    Outputs and targets are (examples, *), with shapes that `fits_targets` accepts.
    """
    if not fits_targets(outputs, targets):
        advice = "; give class labels as whole numbers" if targets.ndim == 1 else ""
        raise ModelError(f"outputs of shape {tuple(outputs.shape)} for targets of {tuple(targets.shape)}{advice}")
    return functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction=reduction)


def fits_targets(outputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """Whether outputs have the shape of targets (examples, *), but for axes of length 1, or one is flat."""
    shapes = [tuple(size for size in each.shape[1:] if size != 1) for each in (outputs, targets)]
    alike = shapes[0] == shapes[1] or 2 in (outputs.ndim, targets.ndim)
    return len(outputs) == len(targets) and outputs.numel() == targets.numel() and alike


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Mean cross entropy of logits and integer labels, over examples and positions.

    Logits (examples, classes) for labels (examples,), or (examples, time, classes) for (examples, time); logits
    (examples, classes, *) for labels (examples, *) are read as torch does.
    """
    if class_axis(outputs, targets) == -1 and targets.ndim > 1:
        outputs, targets = outputs.flatten(0, -2), targets.flatten()
    return functional.cross_entropy(outputs, targets, reduction=reduction)


def cross_entropies(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The cross entropy of each label, (items,), without labels -100, which torch ignores, too."""
    items = cross_entropy(outputs, targets, "none").flatten()
    return items if targets.is_floating_point() else items[targets.flatten() != IGNORED]


def squared_errors(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The squared error of each output, (items,)."""
    return mean_squared_error(outputs, targets, "none").flatten()


def class_axis(outputs: torch.Tensor, targets: torch.Tensor) -> int | None:
    """The class axis of outputs, (examples, *, classes) or (examples, classes, *), for labels (examples, *).

    None if the outputs have neither shape; -1 if they have both.
    """
    shape = tuple(outputs.shape)
    if shape[:-1] == tuple(targets.shape):
        return -1
    return 1 if len(shape) > 1 and shape[:1] + shape[2:] == tuple(targets.shape) else None


LOSSES: Mapping[str, Loss] = {"cross_entropy": cross_entropy, "mse": mean_squared_error}

LOSS_NAMES = (*LOSSES, OWN_LOSS)
"""The names that a loss may be given by."""

ITEMS: Mapping[str, Loss] = {"cross_entropy": cross_entropies, "mse": squared_errors}
"""The built-in losses without the mean: a number for each label or output."""

ScoreFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of outputs and targets, both (examples, *); it gives a number or bool for each item, (items,)."""


def accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Share of examples whose largest logit is that of the label.

    Gives bool (examples,), for logits (examples, classes) and labels (examples,).
    """
    _check_logits("accuracy", outputs, targets)
    return outputs.argmax(1) == targets


def top5(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Share of examples whose label is among the five largest logits.

    Gives bool (examples,), for logits (examples, classes) and labels (examples,).
    """
    _check_logits("top5", outputs, targets)
    if outputs.shape[1] <= 5:
        raise ModelError(f"score top5 needs more than 5 outputs, and there are {outputs.shape[1]}")
    return (outputs.topk(5, dim=1).indices == targets[:, None]).any(1)


def token_accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Share of positions in sequences whose largest logit is that of the label.

    Gives bool (examples * time,). Logits are (examples, time, classes) or (examples, classes, time), as the loss
    reads them, and labels are (examples, time).
    Places of the label -100 are left out.
    """
    axis = class_axis(outputs, targets)
    if axis is None or targets.ndim < 2 or not are_labels(targets):
        raise _unfit("token_accuracy", "(examples, time, classes)", "labels (examples, time)", outputs, targets)
    return (outputs.argmax(axis) == targets)[targets != IGNORED]


def mae(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Mean absolute error of the outputs.

    Gives floats, one for each output, for outputs and targets (examples, *).
    """
    if not fits_targets(outputs, targets):
        raise _unfit("mae", "(examples, *)", "targets of this shape", outputs, targets)
    return (outputs - targets.reshape(outputs.shape)).abs().flatten()


def label_entropies(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Exponential of the mean cross entropy of the labels.

    Gives the cross entropy of each label, (items,).
    """
    if class_axis(outputs, targets) is None or not are_labels(targets):
        raise _unfit("perplexity", "(examples, *, classes)", "labels (examples, *)", outputs, targets)
    return cross_entropies(outputs, targets)


SCORES: Mapping[str, ScoreFunction] = {
    "accuracy": accuracy,
    "top5": top5,
    "token_accuracy": token_accuracy,
    "mae": mae,
    "perplexity": label_entropies,
}


def default_scores(loss: str | Code, description: Description, rule: LabelRule = AS_SHAPED) -> tuple[str, ...]:
    """The default scores for a loss and for examples of this description, of a network that is read by a rule.

    A user's own loss is assumed to take logits if the targets are labels.
    """
    if loss == "mse":
        return ("mae",)
    if not description.labels or (loss == OWN_LOSS and description.targets and not rule.by_label):
        return ()  # which output of a sequence is for which label is not known
    return ("token_accuracy",) if description.targets else ("accuracy",)


def score_items(score: str | Code, outputs: Any, targets: Tensors, rule: LabelRule = AS_SHAPED) -> torch.Tensor:
    """The value of a score or a loss of what a network gives: a number or bool for each item, (items,).

    A user's function gives one for each example, or a single one, (). Raises `ModelError` for any other value.
    """
    if score == OWN_LOSS:
        return loss_in(outputs)
    if isinstance(score, str):
        outputs = output_of(outputs)
        return {**SCORES, **ITEMS}[score](*(rule(outputs, targets) if score in LABELLED else (outputs, targets)))
    examples = len(first_tensor(targets))
    # Copies, as a function of the user's may write to what it is given, which others are given, too.
    value = score.load()(each_tensor(torch.clone, outputs), moved(targets, torch.clone))
    value = torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value
    items = torch.as_tensor(value) if isinstance(value, torch.Tensor | int) else None
    if items is None or items.is_complex() or tuple(items.shape) not in ((), (1,), (examples,)):
        what = type(value).__name__ if items is None else f"a tensor {tuple(items.shape)} of {items.dtype}"
        raise ModelError(
            f"score {score.reference} must give a number for each of {examples} examples or one, not {what}"
        )
    return items if tuple(items.shape) == (examples,) else items.reshape(())


def items_examples(score: str | Code, items: torch.Tensor, targets: Tensors, rule: LabelRule) -> torch.Tensor:
    """The number of the example of each item of a score or a loss, int64 (items,), for targets (examples, *)."""
    if score in LABELLED and not targets.is_floating_point():
        return (rule.labels(targets) != IGNORED).nonzero()[:, 0]
    examples = len(first_tensor(targets))
    return torch.arange(examples, device=items.device).repeat_interleave(len(items) // examples)


def _check_logits(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    if outputs.ndim != 2 or outputs.shape[1] < 2 or not are_scalar_labels(targets) or len(outputs) != len(targets):
        raise _unfit(name, "(examples, classes)", "labels (examples,)", outputs, targets)


def _unfit(name: str, outputs: str, targets: str, given: torch.Tensor, beside: torch.Tensor) -> ModelError:
    fitting = "; token_accuracy scores sequences" if name == "accuracy" and beside.ndim > 1 else ""
    if given.numel() == beside.numel() and not beside.is_floating_point():
        fitting = "; of one output for a label the loss does not tell where label 1 begins"
    return ModelError(
        f"score {name} needs outputs {outputs} and {targets}, not {tuple(given.shape)} and "
        f"{tuple(beside.shape)} of {str(beside.dtype).removeprefix('torch.')}{fitting}"
    )


Kept = Mapping[str, torch.Tensor | list[torch.Tensor]]
"""A metric's state as plain tensors, as other processes may not know the metric's class."""


def metric_of(score: str | Code) -> Any:
    """A new copy of a metric if the score is one, or a function without parameters that makes one; else None.

    A metric is recognised by its methods, so that torchmetrics need not be imported.
    """
    if isinstance(score, str):
        return None
    value = score.load()
    if inspect.isfunction(value) and not inspect.signature(value).parameters:
        value = value()
    if isinstance(value, type) or not all(hasattr(value, name) for name in ("update", "compute", "merge_state")):
        return None
    metric: Any = copy.deepcopy(value)
    metric.distributed_available_fn = bool  # always False: a metric must not wait for other ranks to compute it
    metric.reset()
    return metric


def updated(score: Code, outputs: torch.Tensor, targets: torch.Tensor) -> Kept:
    """The state of a new metric that has seen outputs (examples, *) and targets (examples, *)."""
    metric = metric_of(score)
    metric.update(outputs, targets)
    # Cloned, since a view would be sent together with the whole tensor behind it.
    return {
        name: [part.clone() for part in value] if isinstance(value, list) else value.clone()
        for name, value in metric.metric_state.items()
    }


def merged(score: Code, states: Sequence[Kept]) -> float:
    """The value of a metric from the states of batches, in their order."""
    metric = metric_of(score)
    count_updates(metric, len(states))
    for state in reversed(states):  # a merged state is put before those already there
        metric.merge_state(state)
    return _number(score, metric.compute())


def count_updates(metric: Any, updates: int) -> None:
    """Set the number of batches that a metric has seen, as merging states into it does not count them."""
    metric._update_count = updates  # without documentation, as of torchmetrics 1.9.0


def check_merging(score: Code, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    """Raise `ModelError` if merging batches of outputs (examples, *) gives another value than all at once."""
    metric = metric_of(score)
    metric.update(outputs, targets)
    once = _number(score, metric.compute())
    size = 1 + len(outputs) // 3
    batches = zip(outputs.split(size), targets.split(size), strict=True)
    with failing_as(lambda error: _unmerged(score, one_line(error))):
        apart = merged(score, [updated(score, *batch) for batch in batches])
    same = math.isclose(once, apart, rel_tol=1e-3, abs_tol=1e-6)
    if not (same or (math.isnan(once) and math.isnan(apart))):
        raise _unmerged(score, f"the batches give {apart:.4g}, all examples at once {once:.4g}")


def _unmerged(score: Code, reason: str) -> ModelError:
    return ModelError(
        f"score {score.reference} is a metric whose batches cannot be merged: {reason}; "
        "give a function of outputs and targets that returns what the metric gives for all of them"
    )


def _number(score: Code, value: object) -> float:
    if not isinstance(value, torch.Tensor) or value.numel() != 1:
        what = f"a tensor {tuple(value.shape)}" if isinstance(value, torch.Tensor) else type(value).__name__
        raise ModelError(f"score {score.reference} must compute one number, not {what}; choose its average")
    return value.item()


def size_of(kept: Kept) -> int:
    """The size of a metric's state in bytes."""
    return sum(part.nbytes for each in kept.values() for part in (each if isinstance(each, list) else [each]))
