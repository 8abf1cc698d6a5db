"""Scores: how good outputs are. A score says what it is by what it gives.

One number for each item that is scored: the mean is reported. One number: it is a function of all outputs, which
are gathered for it. Or it is a metric as torchmetrics has them, which is updated and merged by its own rules.
"""

from __future__ import annotations

import copy
import inspect
from collections.abc import Callable, Mapping
from typing import Any

import torch

from storage.errors import ModelError, failing_as, one_line
from tasks.data.examples import are_labels, is_label
from tasks.data.partitions import Description
from tasks.networks.losses import class_axis
from tasks.user_code import Code

MOST_GATHERED = 2**28
"""Bytes of outputs that are gathered for a score of all of them."""

ScoreFunction = Callable[[torch.Tensor, torch.Tensor], torch.Tensor]
"""Outputs (examples, *) and targets (examples, *) to one number or truth for each item, (items,)."""


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
    """
    axis = class_axis(outputs, targets)
    if axis is None or targets.ndim < 2 or not are_labels(targets):
        raise _unfit("token_accuracy", "(examples, time, classes)", "labels (examples, time)", outputs, targets)
    return (outputs.argmax(axis) == targets).flatten()


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
    """The scores of a loss on targets that nobody chose scores for: none of squares are right or wrong.

    Losses of the user's are taken to be of logits where the targets are labels.
    """
    if loss == "mse":
        return ("mae",)
    if not description.labels:
        return ()
    return ("token_accuracy",) if description.targets else ("accuracy",)


def score_items(score: str | Code, outputs: torch.Tensor, targets: torch.Tensor) -> torch.Tensor:
    """One number or truth for each item that is scored, (items,); raises `ModelError` where it does not fit.

    The user's own gives one for each example, or one number for all of them, ().
    """
    if isinstance(score, str):
        return SCORES[score](outputs, targets)
    with failing_as(lambda error: ModelError(f"score {score.reference} fails with {one_line(error)}")):
        metric = metric_of(score)
        if metric:
            metric.update(outputs, targets)
        found = metric.compute() if metric else score.load()(outputs, targets)
    found = torch.tensor(found, dtype=torch.float64) if isinstance(found, float) else found
    items = torch.as_tensor(found) if isinstance(found, torch.Tensor | int) else None
    if items is None or items.is_complex() or tuple(items.shape) not in ((), (1,), (len(outputs),)):
        what = type(found).__name__ if items is None else f"a tensor {tuple(items.shape)} of {items.dtype}"
        raise ModelError(
            f"score {score.reference} must give a number for each of {len(outputs)} examples or one, not {what}"
        )
    return items if tuple(items.shape) == (len(outputs),) else items.reshape(())


def metric_of(score: str | Code) -> Any:
    """A new metric of torchmetrics where a score is one, or a function without parameters that makes one."""
    if isinstance(score, str):
        return None
    found = score.load()
    if isinstance(found, type):
        return None
    if inspect.isfunction(found) and not inspect.signature(found).parameters:
        found = found()
    if not all(hasattr(found, name) for name in ("update", "compute", "merge_state")):
        return None
    metric: Any = copy.deepcopy(found)
    metric.distributed_available_fn = bool  # never: among ranks it would wait for all of them to compute it
    metric.reset()
    return metric


def gives_items(score: str | Code, outputs: torch.Tensor, targets: torch.Tensor) -> bool:
    """Whether a score gives a number for each example: seen on two of outputs (examples, *).

    One that cannot be told of two alone, such as an area under a curve of a single class, is one of all outputs.
    """
    if isinstance(score, str):
        return True
    two = torch.tensor([0, len(outputs) - 1])
    try:
        return score_items(score, outputs[two], targets[two]).ndim > 0
    except ModelError:
        return False


def gathered_bytes(outputs: torch.Tensor, examples: int) -> int:
    """What the outputs of all held-out examples take, of which some are `outputs` (examples, *)."""
    return outputs[:1].nbytes * examples


def check_scores(
    scores: tuple[str | Code, ...], outputs: torch.Tensor, targets: torch.Tensor, held_out: int = 0
) -> None:
    """Raise `ModelError` for a score that does not fit outputs (examples, *) and targets (examples, *).

    So does one number of all outputs, where those of so many examples held out are too many to gather.
    """
    for score in scores:
        score_items(score, outputs, targets)
        if metric_of(score) or gives_items(score, outputs, targets):
            continue
        if (size := gathered_bytes(outputs, held_out)) > MOST_GATHERED:
            raise ModelError(
                f"score {score_name(score)} is one number of all outputs; those of {held_out} held-out examples "
                f"take {size / 1e9:.1f} GB, and at most {MOST_GATHERED / 1e9:.1f} GB are gathered; give a number "
                "for each example, use a metric of torchmetrics, or hold out fewer examples"
            )


def score_name(score: str | Code) -> str:
    """What a score is called: a name of the table, or that of the user's function."""
    return score if isinstance(score, str) else score.name


def _check_logits(name: str, outputs: torch.Tensor, targets: torch.Tensor) -> None:
    if outputs.ndim != 2 or not is_label(targets) or len(outputs) != len(targets):
        raise _unfit(name, "(examples, classes)", "labels (examples,)", outputs, targets)


def _unfit(name: str, outputs: str, targets: str, given: torch.Tensor, beside: torch.Tensor) -> ModelError:
    fitting = "; token_accuracy scores sequences" if name == "accuracy" and beside.ndim > 1 else ""
    return ModelError(
        f"score {name} needs outputs {outputs} and {targets}, not {tuple(given.shape)} and "
        f"{tuple(beside.shape)} of {str(beside.dtype).removeprefix('torch.')}{fitting}"
    )
