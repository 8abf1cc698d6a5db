"""Losses, and scores, which say how good outputs are. The kind of a score follows from what it returns.

If it gives a number for each scored item, the mean is reported. If it gives a single number, it is a function of
all outputs, which are gathered for it. A metric of torchmetrics is updated and merged by its own rules.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch.nn import functional

from storage.errors import ModelError
from tasks.data.description import Description
from tasks.data.examples import IGNORED, Tensors, are_labels, are_scalar_labels, first_tensor
from tasks.networks.outputs import OWN_LOSS, output_of
from tasks.user_code import Code

Loss = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""A function of outputs and targets, both (examples, *).

It gives one number, or one for each example, (examples,).
"""


def mean_squared_error(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Mean over examples and outputs; outputs of shape (examples, 1) may have targets of shape (examples,)."""
    if outputs.numel() != targets.numel():
        raise ModelError(f"outputs of shape {tuple(outputs.shape)} for targets of {tuple(targets.shape)}")
    return functional.mse_loss(outputs, targets.reshape(outputs.shape).to(outputs.dtype), reduction=reduction)


def cross_entropy(outputs: torch.Tensor, targets: torch.Tensor, reduction: str = "mean") -> torch.Tensor:
    """Mean over examples and places of the cross entropy of logits with integer labels.

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

    None if the outputs have neither shape.
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
    """Whether the greatest logit (examples, classes) is that of the label (examples,): bool (examples,)."""
    _check_logits("accuracy", outputs, targets)
    return outputs.argmax(1) == targets


def top5(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Whether the label (examples,) is among the five greatest logits (examples, classes): bool (examples,)."""
    _check_logits("top5", outputs, targets)
    if outputs.shape[1] <= 5:
        raise ModelError(f"score top5 needs more than 5 outputs, and there are {outputs.shape[1]}")
    return (outputs.topk(5, dim=1).indices == targets[:, None]).any(1)


def token_accuracy(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """Whether the greatest logit is the label's at each place of sequences: bool (examples * time,).

    Logits (examples, time, classes) or (examples, classes, time) and labels (examples, time), as the loss reads.
    Places of the label -100 are left out.
    """
    axis = class_axis(outputs, targets)
    if axis is None or targets.ndim < 2 or not are_labels(targets):
        raise _unfit("token_accuracy", "(examples, time, classes)", "labels (examples, time)", outputs, targets)
    return (outputs.argmax(axis) == targets)[targets != IGNORED]


def mae(outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """The distance of each output (examples, *) from its target (examples, *): floats, one for each output."""
    if outputs.numel() != targets.numel():
        raise _unfit("mae", "(examples, *)", "as many numbers", outputs, targets)
    return (outputs - targets.reshape(outputs.shape)).abs().flatten()


SCORES: Mapping[str, ScoreFunction] = {
    "accuracy": accuracy,
    "top5": top5,
    "token_accuracy": token_accuracy,
    "mae": mae,
}


def default_scores(loss: str | Code, description: Description) -> tuple[str, ...]:
    """The default scores for a loss and for examples of this description.

    A user's own loss is assumed to take logits if the targets are labels.
    """
    if loss == "mse":
        return ("mae",)
    if not description.labels or (loss == OWN_LOSS and description.targets):
        return ()  # a network may shift the labels of sequences itself, as GPT-2 does
    return ("token_accuracy",) if description.targets else ("accuracy",)


def score_items(score: str | Code, outputs: Any, targets: Tensors) -> torch.Tensor:
    """The value of a score or a loss of what a network gives: a number or bool for each item, (items,).

    A user's function gives one for each example, or a single one, (). Raises `ModelError` for any other value.
    """
    if isinstance(score, str):
        return {**SCORES, **ITEMS}[score](output_of(outputs), targets)
    examples = len(first_tensor(targets))
    value = score.load()(outputs, targets)
    value = torch.tensor(value, dtype=torch.float64) if isinstance(value, float) else value
    items = torch.as_tensor(value) if isinstance(value, torch.Tensor | int) else None
    if items is None or items.is_complex() or tuple(items.shape) not in ((), (1,), (examples,)):
        what = type(value).__name__ if items is None else f"a tensor {tuple(items.shape)} of {items.dtype}"
        raise ModelError(
            f"score {score.reference} must give a number for each of {examples} examples or one, not {what}"
        )
    return items if tuple(items.shape) == (examples,) else items.reshape(())


def _check_logits(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    if outputs.ndim != 2 or not are_scalar_labels(targets) or len(outputs) != len(targets):
        raise _unfit(name, "(examples, classes)", "labels (examples,)", outputs, targets)


def _unfit(name: str, outputs: str, targets: str, given: torch.Tensor, beside: torch.Tensor) -> ModelError:
    fitting = "; token_accuracy scores sequences" if name == "accuracy" and beside.ndim > 1 else ""
    return ModelError(
        f"score {name} needs outputs {outputs} and {targets}, not {tuple(given.shape)} and "
        f"{tuple(beside.shape)} of {str(beside.dtype).removeprefix('torch.')}{fitting}"
    )
