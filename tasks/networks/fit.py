"""Whether a network, its loss and its scores fit the examples: tried once, before a run begins."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import replace

import torch

from storage.errors import ModelError, RoundweaveError, failing_as, one_line
from storage.values.tensors import dtype_name
from tasks.data.examples import Examples
from tasks.data.partitions import Description, Partitions
from tasks.networks.losses import class_axis
from tasks.networks.objective import Objective
from tasks.networks.scores import default_scores
from tasks.networks.trial import Trial
from tasks.numerics import pinned
from tasks.user_code import Code


def check_fit(objective: Objective, partitions: Partitions, description: Description, partition: int) -> Objective:
    """The objective with its scores, once it was tried on two examples of a partition.

    Raises `ModelError` where the network, its loss or a given score does not fit; of the scores by default those
    are left out.
    """
    examples, more = partitions.sample(partition), functools.partial(partitions.sample, partition, spread=True)
    model = objective.model.model
    name = model.reference if isinstance(model, Code) else model
    where = f"model {name} on inputs of shape {tuple(examples.inputs.shape)} {dtype_name(examples.inputs.dtype)}"
    try:
        with failing_as(lambda error: ModelError(f"{where} fails with {one_line(error)}")):
            return _tried(objective, examples, more, description)
    except _Misfit as misfit:
        raise ModelError(f"{where}{misfit}") from None


class _Misfit(RoundweaveError):
    """What does not fit, as the end of a sentence."""


def _tried(
    objective: Objective, examples: Examples, more: Callable[[int], Examples], description: Description
) -> Objective:
    network = objective.network(objective.initial()).eval()
    with torch.no_grad(), pinned(0, threads=1):
        outputs = network(examples.inputs)
        if not isinstance(outputs, torch.Tensor):
            raise _Misfit(
                f" gives a {type(outputs).__name__}, and outputs must be one tensor; "
                "wrap the model in a module whose forward returns the tensor, such as its .logits"
            )
        if misfit := _misfit(objective, outputs, examples.targets, description.classes):
            raise _Misfit(f" {misfit}")
        loss = objective.value(outputs, examples.targets)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            raise _Misfit(": the loss must be a single number, or one for each example")
        trial = Trial(network, outputs, examples.targets, more, description.held_out)
        if objective.scores is None:
            scores = default_scores(objective.loss, description)
            objective = replace(objective, scores=tuple(score for score in scores if _fits(trial, score)))
        _check_names(objective)
        whole = tuple(name for name, judge in objective.judges.items() if trial.is_whole(name, judge))
        return replace(objective, whole=whole)


def _check_names(objective: Objective) -> None:
    """Raise `ModelError` where two scores have one name, or one has that of the loss."""
    names = ["loss", *(score if isinstance(score, str) else score.name for score in objective.scores or ())]
    for name in names:
        if names.count(name) > 1:
            raise ModelError(f"two numbers would be called {name!r}, of the scores and the loss; rename one")


def _fits(trial: Trial, score: str) -> bool:
    try:
        trial.is_whole(score, score)
    except ModelError:
        return False
    return True


def _misfit(objective: Objective, outputs: torch.Tensor, targets: torch.Tensor, classes: int) -> str | None:
    """Why outputs (examples, *) are no logits for labels (examples, *); None where they are, or need not be."""
    if objective.loss != "cross_entropy" or not classes:
        return None
    axis = class_axis(outputs, targets)
    if axis is None:
        wanted = (*targets.shape, classes)
        return f"gives outputs of shape {tuple(outputs.shape)}, but one for each class of each label is {wanted}"
    count = outputs.shape[axis]
    return f"gives {count} outputs, but labels go up to {classes - 1}" if count < classes else None
